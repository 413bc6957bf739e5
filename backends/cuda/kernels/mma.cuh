// Products of small matrices by a warp (mma.sync, ldmatrix; sm_80 and newer): d += a * b.
//
// Every lane of the warp takes part and holds a part of each matrix. With g = lane / 4, t = lane % 4:
//
//   f16, bf16 m16n8k16: registers hold two elements, the first one in the low half
//     a[0] a(g,     2t ..)       a[1] a(g + 8, 2t ..)      a[2] a(g, 2t + 8 ..)  a[3] a(g + 8, 2t + 8 ..)
//     b[0] b(2t .., g)           b[1] b(2t + 8 .., g)
//   s8 m16n8k32: registers hold four elements, the first one in the low byte
//     a[0] a(g,     4t ..)       a[1] a(g + 8, 4t ..)      a[2] a(g, 4t + 16 ..) a[3] a(g + 8, 4t + 16 ..)
//     b[0] b(4t .., g)           b[1] b(4t + 16 .., g)
//   s8 m16n8k16:
//     a[0] a(g,     4t ..)       a[1] a(g + 8, 4t ..)
//     b[0] b(4t .., g)
//   d of all of them, f32 or s32:
//     d[0] d(g, 2t)  d[1] d(g, 2t + 1)  d[2] d(g + 8, 2t)  d[3] d(g + 8, 2t + 1)
//
// a is [16 rows, k], b is [k, 8 columns]; so a column of b is 2 (4) consecutive elements of a row of a
// weight. A GPU adds the products of one mma in an order and with roundings of its own; the emulation
// adds them in double and rounds once.
#pragma once
#include "async.cuh"
#include "common.cuh"

#ifdef GGMLPY_EMULATED
// The lanes exchange copies, so that the accumulators stay variables that no address was taken of.
template <int KIND, class T, int N_A, int N_B>
EMULATED_INLINE void emulated_mma_of(T (&d)[4], const u32_t (&a)[N_A], const u32_t (&b)[N_B]) {
    T sums[4] = {d[0], d[1], d[2], d[3]};
    u32_t a_copy[N_A], b_copy[N_B];
    for (int i = 0; i < N_A; ++i) a_copy[i] = a[i];
    for (int i = 0; i < N_B; ++i) b_copy[i] = b[i];
    emulated_mma(KIND, sums, a_copy, b_copy);
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
}
#endif

__device__ inline void mma_f16(float (&d)[4], const u32_t (&a)[4], const u32_t (&b)[2]) {
#ifdef GGMLPY_EMULATED
    emulated_mma_of<0>(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ inline void mma_bf16(float (&d)[4], const u32_t (&a)[4], const u32_t (&b)[2]) {
#ifdef GGMLPY_EMULATED
    emulated_mma_of<1>(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ inline void mma_s8_k32(int (&d)[4], const u32_t (&a)[4], const u32_t (&b)[2]) {
#ifdef GGMLPY_EMULATED
    emulated_mma_of<2>(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ inline void mma_s8_k16(int (&d)[4], const u32_t (&a)[2], const u32_t (&b)[1]) {
#ifdef GGMLPY_EMULATED
    emulated_mma_of<3>(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#endif
}

// --- 8 x 8 matrices of 16 bits from shared memory ---
//
// Lane 8 m + i gives the address of row i of matrix m: 16 bytes, a multiple of 16. Register m gets
// elements (lane / 4, 2 (lane % 4) ..) of matrix m; transposed, (2 (lane % 4) .., lane / 4). So the
// matrices a(0.., 0..), a(8.., 0..), a(0.., 8..), a(8.., 8..) are the registers of a in order. Of
// ldmatrix_x2 the addresses of lanes 16 to 31 are not used. A row may be given as a SharedAddress too.

// Of rows whose groups of 16 bytes are permuted by the row's number: where column + 16 i is if `at` is
// where a column below 16 is.
__device__ inline SharedAddress column_16(SharedAddress at, int i) {
#ifdef GGMLPY_EMULATED
    return (SharedAddress)((unsigned long long)at ^ 32 * i);
#else
    return at ^ 32 * i;
#endif
}

#ifndef GGMLPY_EMULATED
__device__ inline void ldmatrix_x4(u32_t (&r)[4], SharedAddress shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_row)
                 : "memory");
}
__device__ inline void ldmatrix_x4_trans(u32_t (&r)[4], SharedAddress shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_row)
                 : "memory");
}
#endif

__device__ inline void ldmatrix_x4(u32_t (&r)[4], const void* shared_row) {
#ifdef GGMLPY_EMULATED
    emulated_ldmatrix(4, 0, r, shared_row);
#else
    ldmatrix_x4(r, to_shared(shared_row));
#endif
}

__device__ inline void ldmatrix_x4_trans(u32_t (&r)[4], const void* shared_row) {
#ifdef GGMLPY_EMULATED
    emulated_ldmatrix(4, 1, r, shared_row);
#else
    ldmatrix_x4_trans(r, to_shared(shared_row));
#endif
}

__device__ inline void ldmatrix_x2(u32_t (&r)[2], const void* shared_row) {
#ifdef GGMLPY_EMULATED
    emulated_ldmatrix(2, 0, r, shared_row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
#endif
}

__device__ inline void ldmatrix_x2_trans(u32_t (&r)[2], const void* shared_row) {
#ifdef GGMLPY_EMULATED
    emulated_ldmatrix(2, 1, r, shared_row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
#endif
}
