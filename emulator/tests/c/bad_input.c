/* Everything that a program can pass wrongly: an error code with a one-line diagnosis, and the program goes on. */
#include "driver.h"

enum {
    INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, UNSUPPORTED_PTX_VERSION = 222,
    FILE_NOT_FOUND = 301, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, OUT_OF_RESOURCES = 701,
    NOT_SUPPORTED = 801,
};

static const char NEWER[] = ".version 99.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";
static const char NO_BODY[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".extern .func undefined_function (.param .b32 a);\n"
    ".visible .entry k()\n{\n\t.param .b32 p;\n\tst.param.b32 [p], 0;\n\tcall.uni undefined_function, (p);\n\tret;\n}\n";

static void images(const char *ptx, const char *cubin_only) {
    CUmodule module;
    CUfunction function;
    FAILS(INVALID_PTX, "", cuModuleLoadData(&module, "this is not PTX"));
    FAILS(INVALID_PTX, "", cuModuleLoadData(&module, ""));
    FAILS(UNSUPPORTED_PTX_VERSION, "99.0", cuModuleLoadData(&module, NEWER));
    FAILS(INVALID_PTX, "undefined_function", cuModuleLoadData(&module, NO_BODY));
    FAILS(NO_BINARY_FOR_GPU, "machine code for sm_89 only; the emulator needs PTX", cuModuleLoadData(&module, cubin_only));
    FAILS(NO_BINARY_FOR_GPU, "machine code for sm_89 only", cuModuleLoadData(&module, cubin_only + 16 + 64));
    FAILS(INVALID_VALUE, "the image is a null pointer", cuModuleLoadData(&module, NULL));
    FAILS(INVALID_VALUE, "is not memory of this process", cuModuleLoadData(&module, (void *)64));
    FAILS(FILE_NOT_FOUND, "/nowhere.ptx", cuModuleLoad(&module, "/nowhere.ptx"));
    char log[40] = "";
    int options[] = {5, 6};
    void *values[] = {log, (void *)sizeof log};
    FAILS(UNSUPPORTED_PTX_VERSION, "99.0", cuModuleLoadDataEx(&module, NEWER, 2, options, values));
    CHECK(strlen(log) > 10 && strlen(log) < sizeof log);

    OK(cuModuleLoadData(&module, ptx));
    FAILS(NOT_FOUND, "no kernel \"saxpi\": the module has saxpy", cuModuleGetFunction(&function, module, "saxpi"));
    OK(cuModuleUnload(module));
    FAILS(INVALID_HANDLE, "was already destroyed", cuModuleUnload(module));
    FAILS(INVALID_HANDLE, "already destroyed", cuModuleGetFunction(&function, module, "saxpy"));
}

static void launches(CUfunction saxpy, CUfunction nothing, CUdeviceptr dx) {
    int n = 8;
    float a = 2;
    void *good[] = {&n, &a, &dx, &dx}, *few[] = {&n, &a, &dx, NULL}, *stray[] = {&n, &a, (void *)8, &dx};
    struct { int n; float a; CUdeviceptr x; } small = {n, a, dx};
    size_t size = sizeof small;
    void *extra[] = {(void *)1, &small, (void *)2, &size, NULL};
    void *odd[] = {(void *)7, &small, NULL}, *half[] = {(void *)1, &small, NULL};
#define LAUNCH(f, gx, gy, bx, by, shared, params, extra) cuLaunchKernel(f, gx, gy, 1, bx, by, 1, shared, NULL, params, extra)
    FAILS(INVALID_VALUE, "found no arguments, expected 4 arguments of 4, 4, 8 and 8 bytes", LAUNCH(saxpy, 1, 1, 8, 1, 0, NULL, NULL));
    FAILS(INVALID_VALUE, "argument 3 (saxpy_param_3) of 4 arguments", LAUNCH(saxpy, 1, 1, 8, 1, 0, few, NULL));
    FAILS(INVALID_VALUE, "argument 2 (saxpy_param_2)", LAUNCH(saxpy, 1, 1, 8, 1, 0, stray, NULL));
    FAILS(INVALID_VALUE, "found an argument buffer of 16 bytes, expected 24", LAUNCH(saxpy, 1, 1, 8, 1, 0, NULL, extra));
    FAILS(INVALID_VALUE, "extra holds 0x7", LAUNCH(saxpy, 1, 1, 8, 1, 0, NULL, odd));
    FAILS(INVALID_VALUE, "lacks the buffer's pointer or its size", LAUNCH(saxpy, 1, 1, 8, 1, 0, NULL, half));
    FAILS(INVALID_VALUE, "both kernelParams and extra", LAUNCH(saxpy, 1, 1, 8, 1, 0, good, extra));
    FAILS(INVALID_VALUE, "grid", LAUNCH(nothing, 0, 1, 8, 1, 0, NULL, NULL));
    FAILS(INVALID_VALUE, "grid", LAUNCH(nothing, 1, 65536, 8, 1, 0, NULL, NULL));
    FAILS(INVALID_VALUE, "block", LAUNCH(nothing, 1, 1, 0, 1, 0, NULL, NULL));
    FAILS(INVALID_VALUE, "1025", LAUNCH(nothing, 1, 1, 1025, 1, 0, NULL, NULL));
    FAILS(INVALID_VALUE, "", LAUNCH(nothing, 1, 1, 1024, 2, 0, NULL, NULL));
    FAILS(INVALID_VALUE, "shared", LAUNCH(nothing, 1, 1, 8, 1, 49153, NULL, NULL));
    FAILS(INVALID_VALUE, "101376 is the most", cuFuncSetAttribute(nothing, 8, 101377));
    OK(cuFuncSetAttribute(nothing, 8, 101376));
    OK(LAUNCH(nothing, 1, 1, 8, 1, 101376, NULL, NULL));
    FAILS(INVALID_VALUE, "shared", LAUNCH(nothing, 1, 1, 8, 1, 101377, NULL, NULL));
    OK(LAUNCH(nothing, 2147483647u / 1000000, 1, 8, 1, 0, NULL, NULL));
    FAILS(INVALID_HANDLE, "found a null handle", LAUNCH(NULL, 1, 1, 8, 1, 0, NULL, NULL));
    FAILS(INVALID_HANDLE, "is not the handle of a function", LAUNCH((void *)&n, 1, 1, 8, 1, 0, NULL, NULL));
    OK(cuCtxSynchronize());
}

static void memory(CUcontext other, CUcontext own) {
    CUdeviceptr a, b;
    char host[64] = {0};
    OK(cuMemAlloc_v2(&a, 64));
    FAILS(INVALID_VALUE, "", cuMemcpyDtoH_v2(host, a, 65));
    FAILS(INVALID_VALUE, "", cuMemcpyHtoD_v2(a + 1, host, 64));
    FAILS(INVALID_VALUE, "", cuMemcpyHtoD_v2(12345, host, 4));
    FAILS(INVALID_VALUE, "is not memory of this process", cuMemcpyHtoD_v2(a, (void *)4096, 4));
    FAILS(INVALID_VALUE, "null pointer", cuMemcpyDtoH_v2(NULL, a, 4));
    FAILS(INVALID_VALUE, "which is device memory", cuMemcpyHtoD_v2(a, (void *)a, 4));
    FAILS(INVALID_VALUE, "not aligned", cuMemsetD32_v2(a + 2, 0, 1));
    FAILS(INVALID_VALUE, "", cuMemFree_v2(a + 4));
    OK(cuMemFree_v2(a));
    FAILS(INVALID_VALUE, "", cuMemFree_v2(a));
    FAILS(INVALID_VALUE, "", cuMemcpyDtoH_v2(host, a, 4));
    FAILS(INVALID_VALUE, "", cuMemAlloc_v2(&a, 0));
    FAILS(OUT_OF_MEMORY, "", cuMemAlloc_v2(&a, (size_t)1 << 40));
    FAILS(INVALID_VALUE, "freed twice, or never allocated", cuMemFreeHost(host));
    FAILS(713, "registered host memory", cuMemHostUnregister(host));
    OK(cuMemHostRegister_v2(host, sizeof host, 0));
    FAILS(712, "overlap registered host memory", cuMemHostRegister_v2(host + 8, 8, 0));
    OK(cuMemHostUnregister(host));

    FAILS(INVALID_VALUE, "the device address is a null pointer", cuMemcpyHtoD_v2(0, host, 4));
    FAILS(INVALID_VALUE, "the device address is a null pointer", cuMemsetD32_v2(0, 0, 1));

    OK(cuCtxSetCurrent(other));
    OK(cuMemAlloc_v2(&b, 64));
    OK(cuMemcpyHtoD_v2(b, "sixteen bytes...", 16));
    OK(cuCtxSetCurrent(own));
    OK(cuMemAlloc_v2(&a, 64));
    OK(cuMemcpyPeer(a, own, b, other, 16));
    OK(cuMemcpyDtoH_v2(host, a, 16));
    CHECK(memcmp(host, "sixteen bytes...", 16) == 0);
    CHECK(cuMemcpyPeer(a, own, b, own, 16) != 0);
    FAILS(INVALID_CONTEXT, "null handle", cuMemcpyPeer(a, NULL, b, other, 16));
    OK(cuMemFree_v2(a));
    CHECK(cuMemcpyDtoH_v2(host, b, 4) != 0);
    CHECK(cuMemFree_v2(b) != 0);
    OK(cuCtxSetCurrent(other));
    OK(cuMemFree_v2(b));
    OK(cuCtxSetCurrent(own));
}

/* CUDA_MEMCPY2D of unsigned words: from, to (x, y, kind, host, device, array, pitch), width, height. */
static void planes(void) {
    CUdeviceptr a;
    unsigned char from[64], to[64] = {0};
    size_t huge = (size_t)1 << 40;
    for (int i = 0; i < 64; i++) from[i] = (unsigned char)i;
    OK(cuMemAlloc_v2(&a, 512));
    OK(cuMemsetD2D8_v2(a, 512, 7, 0, huge));
    OK(cuMemsetD2D8_v2(a, 512, 7, 512, 1));
    FAILS(INVALID_VALUE, "rows of 8 bytes, 16 apart", cuMemsetD2D8_v2(a, 16, 7, 8, huge));
    FAILS(INVALID_VALUE, "address space", cuMemsetD2D8_v2(a, huge, 7, 8, huge));
    FAILS(INVALID_VALUE, "does not fit the pitch", cuMemsetD2D8_v2(a, 4, 7, 8, 2));
#define H(x, y, pitch) x, y, 1, (size_t)from, 0, 0, pitch
#define D(x, y, pitch) x, y, 2, 0, a, 0, pitch
#define COPY(...) cuMemcpy2D_v2((size_t[]){__VA_ARGS__})
    OK(COPY(H(1, 2, 8), D(4, 1, 16), 3, 4)); /* rows of 3 bytes: 17, 18, 19; 25, 26, 27; … */
    OK(cuMemcpyDtoH_v2(to, a + 16, 64));
    CHECK(to[3] == 7 && to[4] == 17 && to[6] == 19 && to[7] == 7 && to[20] == 25 && to[52] == 41 && to[54] == 43);
    OK(COPY(H(0, 0, 8), D(0, 0, 16), 0, huge));
    OK(COPY(H(0, 0, 0), D(0, 0, 0), 8, 1));
    FAILS(INVALID_VALUE, "leave the 512-byte allocation", COPY(H(0, 0, 8), D(0, 0, 16), 8, huge));
    FAILS(INVALID_VALUE, "fit the pitch of 0", COPY(H(0, 0, 8), D(0, 0, 0), 8, 2));
    FAILS(INVALID_VALUE, "address space", COPY(H((size_t)-4, 0, 8), D(0, 0, 16), 8, 2));
    FAILS(INVALID_VALUE, "address space", COPY(H(0, 0, 8), D(0, huge, huge), 8, 2));
    FAILS(INVALID_VALUE, "", COPY(H(0, 0, 8), D(0, 0, 16), 8, 64));
    OK(cuMemFree_v2(a));
}

/* A call without room for its result has no effect. */
static void no_results(CUcontext own) {
    CUcontext current;
    FAILS(INVALID_VALUE, "dptr is a null pointer", cuMemAlloc_v2(NULL, 64));
    FAILS(INVALID_VALUE, "pp is a null pointer", cuMemAllocHost_v2(NULL, 64));
    FAILS(INVALID_VALUE, "pctx is a null pointer", cuCtxCreate_v2(NULL, 0, 0));
    FAILS(INVALID_VALUE, "pctx is a null pointer", cuDevicePrimaryCtxRetain(NULL, 0));
    FAILS(201, "released more often", cuDevicePrimaryCtxRelease_v2(0));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == own);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t bytes;
    char *ptx = read_file(argv[1], &bytes), *cubin_only = read_file(argv[2], &bytes);
    CUdevice device;
    CUcontext own, other, gone;
    CUstream stream;
    CUevent event, start;
    void *graph;
    FAILS(NOT_INITIALIZED, "before cuInit", cuDeviceGet(&device, 0));
    FAILS(INVALID_VALUE, "", cuInit(1));
    OK(cuInit(0));
    FAILS(INVALID_DEVICE, "one emulated device", cuDeviceGet(&device, 1));
    FAILS(INVALID_VALUE, "null pointer", cuDeviceGet(NULL, 0));
    FAILS(INVALID_CONTEXT, "no context is current", cuMemAlloc_v2(&(CUdeviceptr){0}, 4));
    OK(cuCtxCreate_v2(&gone, 0, 0));
    OK(cuCtxDestroy_v2(gone));
    FAILS(INVALID_CONTEXT, "context 1 was already destroyed", cuCtxSetCurrent(gone));
    FAILS(INVALID_CONTEXT, "is not the handle of a context", cuCtxSetCurrent((void *)ptx));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxCreate_v2(&own, 0, 0));

    images(ptx, cubin_only);
    CUmodule module;
    CUfunction saxpy, nothing;
    CUdeviceptr dx;
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    OK(cuModuleGetFunction(&nothing, module, "nothing"));
    OK(cuMemAlloc_v2(&dx, 64));
    OK(cuMemsetD32_v2(dx, 0, 16));
    launches(saxpy, nothing, dx);
    OK(cuMemFree_v2(dx));
    memory(other, own);
    planes();
    no_results(own);

    OK(cuStreamCreate(&stream, 1));
    OK(cuEventCreate(&event, 0));
    OK(cuEventCreate(&start, 2));
    FAILS(INVALID_HANDLE, "expected a stream, found the handle of event 1", cuStreamSynchronize(event));
    FAILS(INVALID_HANDLE, "expected an event, found the handle of stream", cuEventRecord(stream, NULL));
    FAILS(INVALID_HANDLE, "without timing", cuEventElapsedTime(&(float){0}, start, event));
    FAILS(INVALID_HANDLE, "never recorded", cuEventElapsedTime(&(float){0}, event, event));
    FAILS(NOT_SUPPORTED, "stream capture is not emulated", cuStreamBeginCapture_v2(stream, 0));
    FAILS(NOT_SUPPORTED, "cuGraphCreate is not emulated", cuGraphCreate(&graph, 0));
    FAILS(NOT_FOUND, "cuNoSuchThing is not emulated", cuGetProcAddress_v2("cuNoSuchThing", &graph, 13000, 0, NULL));
    OK(cuStreamDestroy_v2(stream));
    FAILS(INVALID_HANDLE, "already destroyed", cuStreamDestroy_v2(stream));
    FAILS(INVALID_HANDLE, "default stream", cuStreamDestroy_v2(NULL));
    OK(cuEventDestroy_v2(event));
    FAILS(INVALID_HANDLE, "event 1 was already destroyed", cuEventSynchronize(event));

    OK(cuModuleUnload(module));
    OK(cuMemAlloc_v2(&dx, 100));
    FAILS(ILLEGAL_STATE, "1 allocation (100 bytes) never freed", cuCtxDestroy_v2(own));
    OK(cuCtxDestroy_v2(other));
    printf("%d failures\n", failures);
    return failures != 0;
}
