/* Order between streams and the host: what is found, and that correct programs raise nothing. */
#include "driver.h"

enum { ILLEGAL_STATE = 401, NOT_READY = 600, ILLEGAL_ADDRESS = 700, NOT_PERMITTED = 800, N = 256, BYTES = 4 * N };
#define MISSING "missing synchronisation"

static CUfunction saxpy;

static CUresult run(CUstream stream, CUdeviceptr x, CUdeviceptr y, int n) {
    float a = 2;
    void *params[] = {&n, &a, &x, &y};
    return cuLaunchKernel(saxpy, (unsigned)(n + 127) / 128, 1, 1, 128, 1, 1, 0, stream, params, NULL);
}

static void host_function(void *data) {
    CUdeviceptr address;
    *(int *)data = cuMemAlloc_v2(&address, 4);
}

/* The default stream orders blocking streams, not those that said they don't block. */
static void default_stream(CUdeviceptr x, CUdeviceptr y) {
    CUstream blocking, free_running;
    float host[N];
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamCreate(&free_running, 1));
    OK(run(blocking, x, y, N));
    OK(cuMemcpyDtoH_v2(host, y, BYTES));
    OK(run(free_running, x, y, N));
    FAILS(ILLEGAL_STATE, "kernel saxpy on stream 2 wrote bytes 0..1024 of the 1024-byte allocation", cuMemcpyDtoH_v2(host, y, BYTES));
    OK(cuStreamSynchronize(free_running));
    OK(cuMemcpyDtoH_v2(host, y, BYTES));
    OK(cuMemsetD32_v2(y, 0, N));
    FAILS(ILLEGAL_STATE, "cuMemsetD32 on the default stream wrote", run(free_running, x, y, N));
    CHECK(cuCtxSynchronize() == ILLEGAL_STATE); /* the launch's error once more */
    OK(cuCtxSynchronize());
    CUstream per_thread = (CUstream)2;
    OK(run(per_thread, x, y, N));
    FAILS(ILLEGAL_STATE, "on the per-thread default stream wrote", run(free_running, x, y, N));
    CHECK(cuCtxSynchronize() == ILLEGAL_STATE);
    OK(run(per_thread, x, y, N));
    OK(cuMemcpyDtoH_v2(host, y, BYTES)); /* the legacy default stream waits for it */
    OK(run(free_running, x, y, N));
    OK(cuStreamDestroy_v2(free_running)); /* its work is still waited for */
    OK(cuStreamDestroy_v2(blocking));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(host, y, BYTES));
}

static void events(CUdeviceptr x, CUdeviceptr y) {
    CUstream a, b;
    CUevent event, later;
    float host[N], ms;
    OK(cuStreamCreate(&a, 1));
    OK(cuStreamCreate(&b, 1));
    OK(cuEventCreate(&event, 0));
    OK(cuEventCreate(&later, 0));
    OK(cuEventRecord(event, a)); /* too early */
    OK(run(a, x, y, N));
    OK(cuStreamWaitEvent(b, event, 0));
    FAILS(ILLEGAL_STATE, MISSING, run(b, x, y, N));
    CHECK(cuCtxSynchronize() == ILLEGAL_STATE);
    OK(run(a, x, y, N));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(run(b, x, y, N));
    OK(cuEventRecord(later, b));
    FAILS(NOT_READY, "not waited for", cuEventElapsedTime(&ms, event, later));
    OK(cuEventSynchronize(later));
    OK(cuEventElapsedTime(&ms, event, later));
    CHECK(ms >= 0);
    OK(cuMemcpyDtoH_v2(host, y, BYTES));
    /* Readers of the same memory need no order. */
    CUdeviceptr z;
    OK(cuMemAlloc_v2(&z, BYTES));
    OK(cuMemsetD32_v2(z, 0, N));
    OK(cuCtxSynchronize());
    OK(run(a, x, y, N));
    OK(run(b, x, z, N));
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(z));
    OK(cuEventDestroy_v2(event));
    OK(cuEventDestroy_v2(later));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
}

static void pinned(CUdeviceptr x) {
    CUstream stream;
    unsigned char *host, pageable[BYTES];
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocHost_v2((void **)&host, BYTES));
    memset(host, 1, BYTES);
    OK(cuMemcpyHtoDAsync_v2(x, host, BYTES, stream));
    OK(cuStreamSynchronize(stream));
    memset(host, 2, BYTES);
    OK(cuMemcpyDtoHAsync_v2(host, x, BYTES, stream));
    CHECK(host[0] == 0xff && host[BYTES - 1] == 0xff);
    OK(cuMemcpyHtoDAsync_v2(x, host, BYTES, stream)); /* the same stream: reads what the copy brings */
    OK(cuStreamSynchronize(stream));
    CHECK(host[0] == 1);
    OK(cuMemcpyDtoH_v2(pageable, x, BYTES));
    CHECK(pageable[0] == 1 && pageable[BYTES - 1] == 1);
    OK(cuMemcpyDtoHAsync_v2(pageable, x, BYTES, stream));
    CHECK(pageable[0] == 1); /* pageable: there at once */

    OK(cuMemcpyHtoDAsync_v2(x, host, BYTES, stream));
    host[5] = 77;
    FAILS(ILLEGAL_STATE, "the host changed the 1024 bytes at", cuStreamSynchronize(stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoHAsync_v2(host, x, BYTES, stream));
    FAILS(ILLEGAL_STATE, "is freed while cuMemcpyDtoHAsync on stream", cuMemFreeHost(host));
    OK(cuStreamSynchronize(stream));

    int code = 0;
    OK(cuLaunchHostFunc(stream, host_function, &code));
    CHECK(code == NOT_PERMITTED);
    OK(cuStreamDestroy_v2(stream));
}

static void stream_ordered_allocation(CUdeviceptr x) {
    CUstream a, b;
    CUdeviceptr p;
    OK(cuStreamCreate(&a, 1));
    OK(cuStreamCreate(&b, 1));
    OK(cuMemAllocAsync(&p, BYTES, a));
    FAILS(ILLEGAL_STATE, "cuMemAllocAsync on stream", cuMemsetD32Async(p, 0, N, b));
    OK(cuCtxSynchronize());
    OK(cuMemsetD32Async(p, 0, N, a));
    OK(run(a, x, p, N));
    FAILS(ILLEGAL_STATE, "frees them without waiting", cuMemFreeAsync(p, b));
    OK(cuMemAllocAsync(&p, BYTES, a));
    OK(cuMemFreeAsync(p, a));
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
}

/* Managed and mapped memory have one address. */
static void shared_address(CUdeviceptr x) {
    CUdeviceptr managed, mapped;
    float *host, registered[N];
    OK(cuMemsetD32_v2(x, 0x3f800000, N)); /* 1.0 */
    OK(cuMemAllocManaged(&managed, BYTES, 1));
    for (int i = 0; i < N; i++) ((float *)managed)[i] = (float)i;
    OK(run(NULL, x, managed, N));
    OK(cuCtxSynchronize());
    CHECK(((float *)managed)[10] == 12);
    OK(cuMemAllocHost_v2((void **)&host, BYTES));
    for (int i = 0; i < N; i++) host[i] = registered[i] = 5;
    OK(run(NULL, x, (CUdeviceptr)host, N)); /* unified addressing: the host's pointer serves */
    OK(cuCtxSynchronize());
    CHECK(host[0] == 7 && host[N - 1] == 7);
    FAILS(1, "pinned host memory, which cuMemFree does not free", cuMemFree_v2((CUdeviceptr)host));
    OK(cuMemHostRegister_v2(registered, BYTES, 2));
    OK(cuMemHostGetDevicePointer_v2(&mapped, registered, 0));
    OK(run(NULL, x, mapped, N));
    OK(cuCtxSynchronize());
    CHECK(registered[3] == 7);
    OK(cuMemHostUnregister(registered));
    OK(cuMemFreeHost(host));
    OK(cuMemFree_v2(managed));
    OK(cuMemAllocManaged(&managed, BYTES, 1));
    OK(cuMemFreeAsync(managed, NULL));
    FAILS(1, "", cuMemFreeAsync(managed, NULL));
    OK(run(NULL, x, x, N));
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    size_t bytes;
    char *ptx = read_file(argv[1], &bytes);
    CUcontext context;
    CUmodule module;
    CUdeviceptr x, y;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    OK(cuMemAlloc_v2(&x, BYTES));
    OK(cuMemAlloc_v2(&y, BYTES));
    OK(cuMemsetD32_v2(x, 0, N));
    OK(cuMemsetD32_v2(y, 0, N));
    OK(cuCtxSynchronize());
    default_stream(x, y);
    events(x, y);
    pinned(x);
    stream_ordered_allocation(x);
    shared_address(x);

    /* A program that ignores what a launch returns still learns of it. */
    CHECK(run(NULL, x, y, N + 1) == ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == ILLEGAL_ADDRESS);
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(x));
    OK(cuMemFree_v2(y));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    printf("%d failures\n", failures);
    return failures != 0;
}
