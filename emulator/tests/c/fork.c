/* A child that is forked after cuInit gets errors, and leaves its parent's report alone. */
#include "driver.h"
#include <sys/wait.h>
#include <unistd.h>

static const char NOTHING[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n";

int main(void) {
    enum { NOT_INITIALIZED = 3 };
    CUcontext context;
    CUmodule module;
    CUfunction nothing;
    int ends[2], status;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, NOTHING));
    OK(cuModuleGetFunction(&nothing, module, "nothing"));
    for (int i = 0; i < 2; i++) OK(cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(chdir("/") == 0); /* the report's path is relative */
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        FAILS(NOT_INITIALIZED, "initialised before fork", cuCtxSynchronize());
        FAILS(NOT_INITIALIZED, "initialised before fork", cuInit(0));
        fflush(stdout);
        _exit(failures != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pipe(ends) == 0);
    if (fork() == 0) {
        /* Ends in order, but after its parent. */
        char byte;
        close(ends[1]);
        exit(read(ends[0], &byte, 1) != 0);
    }
    OK(cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    printf("%d failures\n", failures);
    return failures != 0;
}
