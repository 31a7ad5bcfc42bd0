// Rotary positions, in place: x [B,T,H,D] f32, the pair (2i, 2i+1) of position t turned by the angle t·θ^(−2i/D).
// A thread owns a pair. The angle grows with t, so sincosf must reduce large arguments; its slow path uses local memory.
#include <math.h>

extern "C" __global__ void rope(float *x, int length, int heads, int width, float theta, int first_position,
                                long long pairs) {
    long long pair = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (pair >= pairs) return;
    int half = width / 2, i = pair % half;
    int t = pair / half / heads % length + first_position;
    float angle = t * powf(theta, -2.0f * i / width), sine, cosine;
    sincosf(angle, &sine, &cosine);
    float2 *at = reinterpret_cast<float2 *>(x) + pair, old = *at;
    *at = make_float2(old.x * cosine - old.y * sine, old.x * sine + old.y * cosine);
}
