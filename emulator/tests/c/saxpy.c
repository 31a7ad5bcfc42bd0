/* A plain driver program: saxpy by pointers and by buffer, from text, a file, fatbins and a library. */
#include "driver.h"

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t bytes;
    char *ptx = read_file(argv[1], &bytes), *fatbin = read_file(argv[2], &bytes), name[64];
    int version, count, major;
    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceGet(&device, 0));
    OK(cuDeviceGetName(name, sizeof name, device));
    OK(cuDeviceGetAttribute(&major, 75, device));
    CHECK(version == 13000 && count == 1 && strstr(name, "emulated") && major == 8);
    OK(cuCtxCreate_v2(&context, 0, device));

    struct { int magic, version; const void *data; void *file; } wrapper = {0x466243b1, 1, fatbin, NULL};
    CUmodule modules[4];
    CUlibrary library;
    OK(cuModuleLoadData(&modules[0], ptx));
    OK(cuModuleLoad(&modules[1], argv[1]));
    OK(cuModuleLoadData(&modules[2], fatbin));
    OK(cuModuleLoadData(&modules[3], &wrapper));
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));

    enum { N = 1000 };
    float x[N], y[N];
    CUdeviceptr dx, dy;
    OK(cuMemAlloc_v2(&dx, sizeof x));
    OK(cuMemAlloc_v2(&dy, sizeof y));
    for (int from = 0; from < 6; from++) {
        CUfunction saxpy;
        if (from < 4) OK(cuModuleGetFunction(&saxpy, modules[from], "saxpy"));
        else OK(cuLibraryGetKernel(&saxpy, library, "saxpy"));
        for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = 1;
        OK(cuMemcpyHtoD_v2(dx, x, sizeof x));
        OK(cuMemcpyHtoD_v2(dy, y, sizeof y));
        struct { int n; float a; CUdeviceptr x, y; } arguments = {N, 2, dx, dy};
        size_t size = sizeof arguments;
        void *pointers[] = {&arguments.n, &arguments.a, &arguments.x, &arguments.y};
        void *extra[] = {(void *)1, &arguments, (void *)2, &size, NULL};
        OK(cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, NULL, from & 1 ? NULL : pointers, from & 1 ? extra : NULL));
        OK(cuMemcpyDtoH_v2(y, dy, sizeof y));
        for (int i = 0; i < N; i++) CHECK(y[i] == 2.0f * (float)i + 1);
    }

    void *alloc;
    int status;
    OK(cuGetProcAddress_v2("cuMemAlloc", &alloc, 13000, 0, &status));
    CHECK(alloc == (void *)cuMemAlloc_v2 && status == 0);

    OK(cuMemFree_v2(dx));
    OK(cuMemFree_v2(dy));
    OK(cuLibraryUnload(library));
    for (int i = 0; i < 4; i++) OK(cuModuleUnload(modules[i]));
    OK(cuCtxDestroy_v2(context));
    printf("%s: %d failures\n", name, failures);
    return failures != 0;
}
