//! How much memory an allocation can still get: what the machine has left, and what the limits on this process leave of it.
//! Read from Linux's `/proc`; elsewhere it is unknown.
//!
//! | limit | used so far |
//! |---|---|
//! | the machine's memory: `MemAvailable`, without swapping | |
//! | a control group's `memory.max`, or those of the groups around it | `memory.current` without the cache of files, which goes first |
//! | `memory.limit_in_bytes` of version 1 | `memory.usage_in_bytes`, in the same way |
//! | `ulimit -v`, `ulimit -d` | `VmSize`, `VmData`, without what the allocator holds back for later |

use std::path::{Path, PathBuf};

/// Bytes that are left, and the limit that leaves no more.
#[derive(Clone, Debug, PartialEq)]
pub struct Free {
    pub bytes: f64,
    /// For messages; `None` is the machine's memory itself.
    pub limit: Option<String>,
}

/// What is left to this process. `None` where that is unknown.
pub fn free() -> Option<Free> {
    free_in(Path::new("/"))
}

/// [`free`] with the files of `/proc` and of control groups below `root`.
fn free_in(root: &Path) -> Option<Free> {
    let available = field(&read(root, "proc/meminfo")?, "MemAvailable:")?;
    let machine = Free { bytes: available, limit: None };
    let limits = control_groups(root).into_iter().chain(process_limits(root));
    Some(limits.fold(machine, |least, found| if found.bytes < least.bytes { found } else { least }))
}

fn read(root: &Path, path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(root.join(path.as_ref().strip_prefix("/").unwrap_or(path.as_ref()))).ok()
}

/// The bytes on a line `NAME: 123 kB`.
fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// What `ulimit -v` and `ulimit -d` leave.
fn process_limits(root: &Path) -> Vec<Free> {
    let files = read(root, "proc/self/limits").zip(read(root, "proc/self/status"));
    let Some((limits, status)) = files else { return vec![] };
    let left = |(name, used, flag): (&str, &str, &str)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let limit: f64 = line.split_whitespace().next()?.parse().ok()?; // or "unlimited"
        let used = field(&status, used)? - read(root, "proc/self/smaps").map_or(0.0, |maps| held_back(&maps));
        Some(Free { bytes: (limit - used.max(0.0)).max(0.0), limit: Some(format!("ulimit {flag}")) })
    };
    [("Max address space", "VmSize:", "-v"), ("Max data size", "VmData:", "-d")].into_iter().filter_map(left).collect()
}

/// Bytes that the allocator has taken from the system and not used so far: of large maps what is not in memory.
fn held_back(maps: &str) -> f64 {
    const LARGE: f64 = 64.0 * 1024.0 * 1024.0; // smaller ones are stacks and the like
    let (mut held, mut own, mut size) = (0.0, false, 0.0);
    for line in maps.lines() {
        if let Some(bytes) = field(line, "Size:") {
            size = bytes;
        } else if let Some(bytes) = field(line, "Rss:") {
            held += if own && size >= LARGE { size - bytes } else { 0.0 };
        } else if line.as_bytes().first().is_some_and(|first| !first.is_ascii_uppercase()) {
            // ADDRESSES PERMISSIONS OFFSET DEVICE INODE [NAME], where inode 0 is no file.
            let mut fields = line.split_whitespace().skip(1);
            own = fields.next() == Some("rw-p") && fields.nth(2) == Some("0");
        }
    }
    held
}

/// Where the files of one version of control groups lie, and how they are called.
struct Version {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: pages of files that nobody has used for a while.
    cache: &'static str,
}

const V2: Version = Version { limit: "memory.max", used: "memory.current", cache: "inactive_file " };
const V1: Version =
    Version { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file " };

/// What the group of this process and those around it leave.
fn control_groups(root: &Path) -> Vec<Free> {
    let files = read(root, "proc/self/cgroup").zip(read(root, "proc/self/mountinfo"));
    let Some((groups, mounts)) = files else { return vec![] };
    let mut all = vec![];
    for line in groups.lines() {
        // NUMBER:CONTROLLERS:PATH, where version 2 is number 0 and names no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (kind, version) = match (number, controllers.split(',').any(|name| name == "memory")) {
            ("0", _) => ("cgroup2", V2),
            (_, true) => ("cgroup", V1),
            _ => continue,
        };
        for (above, top) in mounts.lines().filter_map(|line| mount(line, kind)) {
            // Within a container the path may be that of the host; what is mounted is then the group itself.
            let below = Path::new(path).strip_prefix(&above).unwrap_or(Path::new(""));
            all.extend(below.ancestors().filter_map(|group| left_in(root, &top.join(group), &version)));
        }
    }
    all
}

/// The group that is mounted, and where, of a line of `mountinfo` for the memory of such groups.
fn mount(line: &str, kind: &str) -> Option<(PathBuf, PathBuf)> {
    let (fields, rest) = line.split_once(" - ")?;
    let mut rest = rest.split_whitespace();
    let found = rest.next()? == kind;
    let has_memory = kind == "cgroup2" || rest.last()?.split(',').any(|option| option == "memory");
    let mut fields = fields.split_whitespace().skip(3);
    let paths = (PathBuf::from(fields.next()?), PathBuf::from(fields.next()?));
    (found && has_memory).then_some(paths)
}

fn left_in(root: &Path, group: &Path, version: &Version) -> Option<Free> {
    let number = |name: &str| read(root, group.join(name))?.trim().parse::<f64>().ok(); // or "max"
    let (limit, used) = (number(version.limit)?, number(version.used)?);
    let stat = read(root, group.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(version.cache)?.trim().parse().ok()).unwrap_or(0.0);
    let bytes = (limit - (used - cache).max(0.0)).max(0.0);
    Some(Free { bytes, limit: Some(format!("{} of a control group", version.limit)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

    /// The files of a machine with 8 GiB available, and those given.
    fn free_with(files: &[(&str, &str)]) -> Free {
        let dir = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:   8388608 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        free_in(dir.path()).unwrap()
    }

    #[track_caller]
    fn leaves(files: &[(&str, &str)], gib: f64, limit: Option<&str>) {
        assert_eq!(free_with(files), Free { bytes: gib * GIB, limit: limit.map(str::to_string) });
    }

    #[test]
    fn without_limits_it_is_the_machine_s() {
        leaves(&[], 8.0, None);
        leaves(&[("proc/self/limits", "garbage"), ("proc/self/status", ""), ("proc/self/cgroup", "0:")], 8.0, None);
    }

    #[test]
    fn limits_of_the_process_count_what_it_has() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax data size   2147483648   unlimited  bytes\nMax address space  3221225472  unlimited  bytes\n";
        let status = |size: u64, data: u64| format!("VmPeak:\t 9 kB\nVmSize:\t{size} kB\nVmData:\t{data} kB\n");
        let with = |status: &str, gib, limit| {
            leaves(&[("proc/self/limits", limits), ("proc/self/status", status)], gib, Some(limit));
        };
        with(&status(2 << 20, 1 << 19), 1.0, "ulimit -v");
        with(&status(1 << 20, 1 << 20), 1.0, "ulimit -d");
        with(&status(4 << 20, 0), 0.0, "ulimit -v");
        let maps = "20000000000-20040000000 rw-p 00000000 00:00 0 \nSize:  1048576 kB\nRss:   524288 kB\nVmFlags: rd wr\n7f01-7f02 rw-p 00000000 00:00 0 [stack]\nSize:  1024 kB\nRss:   0 kB\n7f03-7f04 ---p 00000000 00:00 0 \nSize:  1048576 kB\nRss:   0 kB\n7f05-7f06 rw-p 00000000 08:01 77 /file\nSize:  1048576 kB\nRss:   0 kB\n";
        let own = status(2 << 20, 1 << 19);
        let files = [("proc/self/limits", limits), ("proc/self/status", &own), ("proc/self/smaps", maps)];
        leaves(&files, 1.5, Some("ulimit -v"));
        let unlimited = "Max data size  unlimited unlimited bytes\nMax address space  unlimited unlimited bytes\n";
        leaves(&[("proc/self/limits", unlimited), ("proc/self/status", &status(1, 1))], 8.0, None);
    }

    #[test]
    fn of_control_groups_the_narrowest_counts_however_far_up() {
        let mounts = "24 1 0:22 / / rw - ext4 /dev/sda rw\n35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let group = [("proc/self/cgroup", "0::/a/b/c\n"), ("proc/self/mountinfo", mounts)];
        let max = "memory.max of a control group";
        let with = |files: &[(&str, &str)], gib, limit| leaves(&[&group[..], files].concat(), gib, limit);
        let own = [("sys/fs/cgroup/a/b/c/memory.max", "max\n"), ("sys/fs/cgroup/a/b/c/memory.current", "1\n")];
        with(&own, 8.0, None);
        let above = [
            ("sys/fs/cgroup/a/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/a/memory.current", "3221225472\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 1073741824\nactive_file 7\n"),
        ];
        with(&above, 2.0, Some(max));
        with(&[&own[..], &above[..]].concat(), 2.0, Some(max));
        // A container sees its own group as the top, but its path may be that of the host.
        let inside = [
            ("proc/self/cgroup", "0::/docker/123\n"),
            ("proc/self/mountinfo", "35 24 0:30 /docker/123 /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            ("sys/fs/cgroup/memory.max", "1073741824"),
            ("sys/fs/cgroup/memory.current", "0"),
        ];
        leaves(&inside, 1.0, Some(max));
        leaves(&[&[("proc/self/cgroup", "0::/elsewhere\n")], &inside[1..]].concat(), 1.0, Some(max));
    }

    #[test]
    fn control_groups_of_version_1_count_too() {
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/7\n0::/\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
            ),
            ("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "1610612736\n"),
            ("sys/fs/cgroup/memory/jobs/memory.stat", "inactive_file 1\ntotal_inactive_file 536870912\n"),
        ];
        leaves(&files, 1.0, Some("memory.limit_in_bytes of a control group"));
    }

    #[test]
    fn this_machine_has_some_memory_left() {
        assert!(free().is_none_or(|free| free.bytes > 0.0));
    }
}
