// Elements by their number, for copies between tensors of different shapes.
#pragma once
#include "elementwise.cuh"

constexpr int COPY_THREADS = 256;

__device__ inline i64_t thread_index() { return (i64_t)blockIdx.x * blockDim.x + threadIdx.x; }

// Element i of a tensor in ne order.
__device__ inline char* element_at(const Tensor& x, i64_t i, const Run& run) {
    const Quotient row = divided(i, x.ne[0].at(run));
    const Row at = fast_row_of(x, row.whole, run);
    return x.at(at.i1, at.i2, at.i3) + row.rest * x.nb[0];
}
