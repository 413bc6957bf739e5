// Functions of one f32. NaN stays NaN, but for step. Fused steps use these too, for the same bits.
#pragma once
#include "common.cuh"

// Not fmaxf and fminf, which drop a NaN.
__device__ inline float at_least(float x, float low) { return x < low ? low : x; }
__device__ inline float at_most(float x, float high) { return x > high ? high : x; }

__device__ inline float relu(float x) { return at_least(x, 0.0f); }

// The exponential of a large -x is inf, and the result 0.
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ inline float gelu_quick(float x) { return x / (1.0f + expf(-1.702f * x)); }

__device__ inline float gelu(float x) {
    const float inner = 0.79788456080286536f * x * (1.0f + 0.044715f * x * x);  // sqrt(2 / pi)
    return 0.5f * x * (1.0f + tanhf(inner));
}

__device__ inline float gelu_erf(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));  // sqrt(1 / 2)
}

__device__ inline float elu(float x) { return x > 0.0f ? x : expm1f(x); }

__device__ inline float hardsigmoid(float x) {
    return at_most(at_least((x + 3.0f) / 6.0f, 0.0f), 1.0f);
}

// max(x, 0) + ln(1 + exp(-|x|)), which does not overflow.
__device__ inline float softplus(float x) { return at_least(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ inline float sgn(float x) { return fabsf(x) > 0.0f ? copysignf(1.0f, x) : x; }
