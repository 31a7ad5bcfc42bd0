// A disk that fails on demand, put in front of the C library (LD_PRELOAD). Operations below DISK_ROOT that change something
// or bring it to the disk are counted from 1:
//
//   DISK_LOG=FILE        writes a line for each, and what a flushed file holds to FILE.NUMBER
//   DISK_KILL=N          ends the process as kill -9 does, before operation N; of a write, half of the bytes are written
//   DISK_FULL=N[-M]      operations N to M fail as on a full disk, or with the error DISK_ERROR
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static long count;

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static int below_root(const char *path) {
    const char *root = getenv("DISK_ROOT");
    return root && path && strncmp(path, root, strlen(root)) == 0;
}

static const char *path_of(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    buffer[length < 0 ? 0 : length] = 0;
    return buffer;
}

// The full path of a name in an open directory, or in the current one.
static const char *full_path(int directory, const char *path, char *buffer) {
    if (path[0] == '/')
        return path;
    if (directory != AT_FDCWD)
        path_of(directory, buffer);
    else if (!getcwd(buffer, PATH_MAX))
        abort();
    size_t length = strlen(buffer);
    snprintf(buffer + length, PATH_MAX - length, "/%s", path);
    return buffer;
}

// Counts an operation. 0: it may go on; -1: it fails.
static int begin(void) {
    long n = __sync_add_and_fetch(&count, 1);
    if (n == number("DISK_KILL"))
        raise(SIGKILL);
    const char *full = getenv("DISK_FULL"), *end = full ? strchr(full, '-') : NULL;
    if (full && n >= atol(full) && n <= (end ? atol(end + 1) : LONG_MAX)) {
        errno = getenv("DISK_ERROR") ? number("DISK_ERROR") : ENOSPC;
        return -1;
    }
    return 0;
}

static void say(const char *name, const char *a, const char *b) {
    const char *log = getenv("DISK_LOG");
    if (!log)
        return;
    int error = errno, fd = REAL(open64)(log, O_WRONLY | O_APPEND | O_CREAT, 0644);
    dprintf(fd, "%ld\t%s\t%s\t%s\n", count, name, a, b);
    close(fd);
    errno = error;
}

static void keep_content(int fd, const char *path) {
    const char *log = getenv("DISK_LOG");
    char name[PATH_MAX], buffer[4096];
    if (!log)
        return;
    snprintf(name, sizeof name, "%s.%ld", log, count);
    int from = REAL(open64)(path, O_RDONLY), to = REAL(open64)(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (ssize_t n; (n = read(from, buffer, sizeof buffer)) > 0;)
        if (REAL(write)(to, buffer, n) != n)
            abort();
    close(from);
    close(to);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    char full[PATH_MAX];
    path = full_path(AT_FDCWD, path, full);
    int counts = (flags & O_CREAT) && below_root(path);
    if (counts && begin())
        return -1;
    int fd = REAL(open64)(path, flags, mode);
    if (counts && fd >= 0)
        say("create", path, "");
    return fd;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    char path[PATH_MAX];
    if (!below_root(path_of(fd, path)))
        return REAL(write)(fd, bytes, length);
    if (count + 1 == number("DISK_KILL") && REAL(write)(fd, bytes, length / 2) < 0)
        abort();
    if (begin())
        return -1;
    return REAL(write)(fd, bytes, length);
}

int fsync(int fd) {
    char path[PATH_MAX];
    if (!below_root(path_of(fd, path)))
        return REAL(fsync)(fd);
    if (begin())
        return -1;
    struct stat is;
    int result = REAL(fsync)(fd);
    if (result == 0 && fstat(fd, &is) == 0) {
        say(S_ISDIR(is.st_mode) ? "flush directory" : "flush", path, "");
        if (S_ISREG(is.st_mode))
            keep_content(fd, path);
    }
    return result;
}

int rename(const char *from, const char *to) {
    char full_from[PATH_MAX], full_to[PATH_MAX];
    from = full_path(AT_FDCWD, from, full_from);
    to = full_path(AT_FDCWD, to, full_to);
    if (!below_root(to))
        return REAL(rename)(from, to);
    if (begin())
        return -1;
    int result = REAL(rename)(from, to);
    if (result == 0)
        say("rename", from, to);
    return result;
}

int symlink(const char *target, const char *path) {
    char full[PATH_MAX];
    path = full_path(AT_FDCWD, path, full);
    if (!below_root(path))
        return REAL(symlink)(target, path);
    if (begin())
        return -1;
    int result = REAL(symlink)(target, path);
    if (result == 0)
        say("link", path, target);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    char full[PATH_MAX];
    path = full_path(AT_FDCWD, path, full);
    if (!below_root(path))
        return REAL(mkdir)(path, mode);
    if (begin())
        return -1;
    int result = REAL(mkdir)(path, mode);
    if (result == 0)
        say("directory", path, "");
    return result;
}

int unlink(const char *path) {
    char full[PATH_MAX];
    path = full_path(AT_FDCWD, path, full);
    if (!below_root(path))
        return REAL(unlink)(path);
    if (begin())
        return -1;
    int result = REAL(unlink)(path);
    if (result == 0)
        say("remove", path, "");
    return result;
}

int unlinkat(int directory, const char *name, int flags) {
    char buffer[PATH_MAX];
    const char *path = full_path(directory, name, buffer);
    if (!below_root(path))
        return REAL(unlinkat)(directory, name, flags);
    if (begin())
        return -1;
    int result = REAL(unlinkat)(directory, name, flags);
    if (result == 0)
        say("remove", path, "");
    return result;
}

int rmdir(const char *path) {
    char full[PATH_MAX];
    path = full_path(AT_FDCWD, path, full);
    if (!below_root(path))
        return REAL(rmdir)(path);
    if (begin())
        return -1;
    int result = REAL(rmdir)(path);
    if (result == 0)
        say("remove", path, "");
    return result;
}
