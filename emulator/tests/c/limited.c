/* A host with 2 GiB for the process: what does not fit is CUDA_ERROR_OUT_OF_MEMORY, and the context goes on. */
#define _DEFAULT_SOURCE
#include "driver.h"
#include <sys/resource.h>

#define LARGE ".version 8.0\n.target sm_80\n.address_size 64\n.global .b8 x[1200000000];\n.visible .entry k() { ret; }\n"

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    size_t bytes;
    char *ptx = read_file(argv[1], &bytes);
    CUdevice device;
    CUcontext context;
    CUmodule module, large, second;
    CUfunction saxpy;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    struct rlimit limit = {(rlim_t)2 << 30, (rlim_t)2 << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);

    /* One such variable fits, as nobody writes its zeros; two do not. */
    OK(cuModuleLoadData(&large, LARGE));
    FAILS(2, "out of memory", cuModuleLoadData(&second, LARGE));
    OK(cuModuleUnload(large));

    CUdeviceptr x, y;
    void *host;
    FAILS(2, "out of memory", cuMemAlloc_v2(&x, 1200000000));
    FAILS(2, "no room", cuMemAllocHost_v2(&host, (size_t)3 << 30));

    /* The records of accesses take more than the memory itself. */
    OK(cuMemAlloc_v2(&x, 800000000));
    OK(cuMemsetD32_v2(x, 0, 1000));
    int n = 1000;
    float a = 2;
    y = x;
    void *arguments[] = {&n, &a, &x, &y};
    FAILS(2, "out of memory", cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    FAILS(2, "out of memory", cuCtxSynchronize());
    OK(cuMemFree_v2(x));

    OK(cuMemAlloc_v2(&x, 4000));
    OK(cuMemsetD32_v2(x, 0, 1000));
    y = x;
    OK(cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    OK(cuMemFree_v2(x));
    OK(cuModuleUnload(module));
    OK(cuCtxDestroy_v2(context));
    printf("%d failures\n", failures);
    return failures != 0;
}
