// Signals, images and volumes: tensors of convolutions with their dimensions by name.
#pragma once
#include "elementwise.cuh"

// N volumes of C channels. Strides are in bytes; elements of a line are `nb[0]` of the tensor apart.
struct Volumes {
    char* data;
    int W, H, D, C, N;
    i64_t to_line, to_plane, to_channel, to_next;

    __device__ char* channel(int c, int n) const { return data + c * to_channel + n * to_next; }
};

// [W, H, D, n_channels * N], or images [W, H, C, N] if n_channels is 0.
__device__ inline Volumes volumes_of(const Tensor& x, int n_channels, const Run& run) {
    const int w = x.ne[0].at(run), h = x.ne[1].at(run), i2 = x.ne[2].at(run), i3 = x.ne[3].at(run);
    if (n_channels == 0) return {x.data, w, h, 1, i2, i3, x.nb[1], 0, x.nb[2], x.nb[3]};
    const int n = i3 / n_channels;
    return {x.data, w, h, i2, n_channels, n, x.nb[1], x.nb[2], x.nb[3], n_channels * x.nb[3]};
}

// Of windows, along lines (0), from line to line (1) and from plane to plane (2).
struct Steps {
    int s0, s1, s2;
    int p0, p1, p2;
    int d0, d1, d2;
};

// Whether there is an element i of n, with one comparison.
__device__ inline bool is_inside(int i, int n) { return (u32_t)i < (u32_t)n; }
