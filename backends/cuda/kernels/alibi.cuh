// ALiBi's factor of a head's mask: 2^(-max_bias * e), e from the number of the head.
#pragma once
#include "common.cuh"

// The rounding error of the product is known, and what it would do to the power is made good.
__device__ inline float alibi_slope(float max_bias, int head, int n_head) {
    const int n2 = 1 << (31 - __clz(n_head));  // the largest power of two that is not above n_head
    const float e = head < n2 ? (head + 1.0f) / n2 : (2.0f * (head - n2) + 1.0f) / (2.0f * n2);
    const float product = max_bias * e;
    const float error = fmaf(max_bias, e, -product);
    const float power = exp2f(-product);
    return fmaf(-0.69314718f * error, power, power);
}
