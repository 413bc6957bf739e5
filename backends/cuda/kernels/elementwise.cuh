// Elementwise kernels: a thread computes a piece, four neighbours in a row, in f32.
//
// Pieces of a row start at its elements 0, 4, 8, ...; the last one may be shorter. Launchers give
// tensors without gaps as one long row (elementwise.py), so that short rows do not break up pieces.
#pragma once
#include "types.cuh"

constexpr int PIECE = 4;

// Types are uniform in a launch, so a branch on them costs little.
__device__ inline int size_of(int type) { return type == TYPE_F32 ? 4 : 2; }

// n / d and the rest, of n >= 0 and d > 0, by 32 bits where that does.
struct Quotient {
    i64_t whole;
    i64_t rest;
};

__device__ inline Quotient divided(i64_t n, i64_t d) {
    if (((n | d) >> 32) == 0) {
        const u32_t whole = (u32_t)n / (u32_t)d;
        return {whole, (u32_t)n - whole * (u32_t)d};
    }
    const i64_t whole = n / d;
    return {whole, n - whole * d};
}

// As row_of (common.cuh).
__device__ inline Row fast_row_of(const Tensor& x, i64_t row, const Run& run) {
    if (row == 0) return {0, 0, 0};
    const Quotient plane = divided(row, x.ne[1].at(run));
    const Quotient cube = divided(plane.whole, x.ne[2].at(run));
    return {(int)plane.rest, (int)cube.rest, (int)cube.whole};
}

// The row of b that goes with a row of a, where b is repeated to the shape of a.
__device__ inline const char* repeated_at(const Tensor& b, Row row, const Run& run) {
    const int n1 = b.ne[1].at(run), n2 = b.ne[2].at(run), n3 = b.ne[3].at(run);
    const int i1 = row.i1 < n1 ? row.i1 : row.i1 % n1;
    const int i2 = row.i2 < n2 ? row.i2 : row.i2 % n2;
    const int i3 = row.i3 < n3 ? row.i3 : row.i3 % n3;
    return b.at(i1, i2, i3);
}

// A piece of a tensor: elements first to first + n - 1 of a row; none if n is 0.
struct Piece {
    i64_t row;
    int first;
    int n;
};

// That of this thread.
__device__ inline Piece piece_of(const Tensor& y, const Run& run) {
    const int length = y.ne[0].at(run);
    const i64_t per_row = ((i64_t)length + PIECE - 1) / PIECE;
    const i64_t i = (i64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= per_row * y.n_rows(run)) return {0, 0, 0};
    const Quotient row = divided(i, per_row);
    const int first = (int)row.rest * PIECE;
    return {row.whole, first, min(PIECE, length - first)};
}

__device__ inline float load_one(int type, const char* x) {
    if (type == TYPE_F32) return f32::load(x, 0);
    return type == TYPE_F16 ? f16::load(x, 0) : bf16::load(x, 0);
}

__device__ inline void store_one(int type, char* y, float v) {
    if (type == TYPE_F32) {
        f32::store(y, 0, v);
    } else if (type == TYPE_F16) {
        f16::store(y, 0, v);
    } else {
        bf16::store(y, 0, v);
    }
}

__device__ inline bool is_whole(const char* x, i64_t nb0, int n, int size) {
    return n == PIECE && nb0 == size && (unsigned long long)x % (PIECE * size) == 0;
}

// n elements, nb0 bytes apart. Those of a whole piece are one load where they are aligned to it.
__device__ inline void load_piece(int type, const char* x, i64_t nb0, int n, float (&v)[PIECE]) {
    if (!is_whole(x, nb0, n, size_of(type))) {
        for (int i = 0; i < PIECE; ++i) v[i] = i < n ? load_one(type, x + i * nb0) : 0.0f;
    } else if (type == TYPE_F32) {
        const float4 four = *(const float4*)x;
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
        const ushort4 bits = *(const ushort4*)x;
        const u16_t four[PIECE] = {bits.x, bits.y, bits.z, bits.w};
        for (int i = 0; i < PIECE; ++i) v[i] = load_one(type, (const char*)&four[i]);
    }
}

__device__ inline void store_piece(int type, char* y, i64_t nb0, int n, const float (&v)[PIECE]) {
    if (!is_whole(y, nb0, n, size_of(type))) {
        for (int i = 0; i < PIECE; ++i) {
            if (i < n) store_one(type, y + i * nb0, v[i]);
        }
    } else if (type == TYPE_F32) {
        *(float4*)y = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        u16_t four[PIECE];
        for (int i = 0; i < PIECE; ++i) store_one(type, (char*)&four[i], v[i]);
        *(ushort4*)y = make_ushort4(four[0], four[1], four[2], four[3]);
    }
}
