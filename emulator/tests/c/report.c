/* A kernel that never ends, a leak, and the report of both. HANDGRAD_EMULATOR_STEPS is set. */
#include "driver.h"

CUresult cuEmulatorReport(char *text, size_t room, size_t *needed, unsigned json);

static const char SPIN[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry spin()\n{\n$again:\n\tbra $again;\n}\n.visible .entry nothing()\n{\n\tret;\n}\n";

int main(void) {
    enum { ILLEGAL_STATE = 401, TIMEOUT = 702 };
    CUcontext context;
    CUmodule module;
    CUfunction spin, nothing;
    CUdeviceptr leaked;
    size_t needed, again;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, SPIN));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    OK(cuModuleGetFunction(&nothing, module, "nothing"));
    OK(cuLaunchKernel(nothing, 2, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    FAILS(TIMEOUT, "kernel spin", cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cuStreamSynchronize(NULL) == TIMEOUT);
    OK(cuStreamSynchronize(NULL));
    OK(cuMemAlloc_v2(&leaked, 321));
    OK(cuDevicePrimaryCtxRelease_v2(0)); /* retained once more */
    FAILS(ILLEGAL_STATE, "1 allocation (321 bytes) never freed", cuDevicePrimaryCtxRelease_v2(0));
    FAILS(201, "released more often than retained", cuDevicePrimaryCtxRelease_v2(0));

    OK(cuEmulatorReport(NULL, 0, &needed, 1));
    char *text = malloc(needed);
    OK(cuEmulatorReport(text, needed, &again, 1));
    CHECK(again == needed && strlen(text) == needed - 1);
    CHECK(strstr(text, "\"nothing\"") && strstr(text, "kernel spin") && strstr(text, "321 bytes"));
    CHECK(text[0] == '{' && text[needed - 2] == '\n');
    OK(cuEmulatorReport(text, 10, NULL, 0));
    CHECK(strlen(text) == 9);
    printf("%d failures\n", failures);
    return failures != 0;
}
