// Gated linear units, of two f32. Fused steps use this too, for the same bits.
#pragma once
#include "unary_functions.cuh"

// In the order of glu.py.
enum Glu { REGLU, SWIGLU, GEGLU, GEGLU_ERF, GEGLU_QUICK, SWIGLU_OAI, SWIGLU_CLAMP };

// act(gate) * up. `alpha` and `limit` are parameters of swiglu_oai and swiglu_clamp.
__device__ inline float gated(int glu, float gate, float up, float alpha, float limit) {
    switch (glu) {
        case REGLU: return relu(gate) * up;
        case SWIGLU: return silu(gate) * up;
        case GEGLU: return gelu(gate) * up;
        case GEGLU_ERF: return gelu_erf(gate) * up;
        case GEGLU_QUICK: return gelu_quick(gate) * up;
    }
    const float g = at_most(gate, limit);
    const float u = at_most(at_least(up, -limit), limit);
    if (glu == SWIGLU_CLAMP) return silu(g) * u;
    return g / (1.0f + expf(-alpha * g)) * (u + 1.0f);
}
