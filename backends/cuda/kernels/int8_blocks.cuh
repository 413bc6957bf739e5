// Blocks of 32 elements of quantised weights times those of x: by an mma for rows and columns of a warp,
// and for one column by each lane alone. Sums have the same order in both; products_int8.cuh says which.
#pragma once
#include "mma.cuh"
#include "quants.cuh"

// sum + the low half of `pair` times the low byte of `bytes`, and the high half times the byte
// above it.
__device__ inline int dot_of_2(u32_t pair, u32_t bytes, int sum) {
#ifdef GGMLPY_EMULATED
    return sum + (short)pair * (i8_t)bytes + (short)(pair >> 16) * (i8_t)(bytes >> 8);
#else
    asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(bytes), "r"(sum));
    return sum;
#endif
}

// sum + four bytes times four bytes.
__device__ inline int dot_of_4(u32_t a, u32_t b, int sum) {
#ifdef GGMLPY_EMULATED
    for (int i = 0; i < 32; i += 8) sum += (i8_t)(a >> i) * (i8_t)(b >> i);
    return sum;
#else
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(sum));
    return sum;
#endif
}

// Sums of whole numbers begin at LIFT: such a sum is the bits of a float, 1.5 * 2^23 plus the sum,
// which stays below 2^19. A scale has at most 22 bits, so that 1.5 * 2^23 times it is exact, and one
// fmaf converts the sum, and rounds sum * scale once. A scale that is infinite gives NaN.
constexpr int LIFT = 0x4b400000;
constexpr float LIFTED_ZERO = 12582912.0f;

// Those of mxfp4 may be so large that this overflows.
template <class Q>
constexpr bool LIFTS = true;
template <>
constexpr bool LIFTS<mxfp4> = false;

// A lifted sum times the scale d; `minus` is minus_lift<Q>(d).
template <class Q>
__device__ inline float scaled(int lifted, float d, float minus) {
    if (!LIFTS<Q>) return (float)(lifted - LIFT) * d;
    return fmaf(__int_as_float(lifted), d, minus);
}

template <class Q>
__device__ inline float minus_lift(float d) {
    return LIFTS<Q> ? -LIFTED_ZERO * d : 0.0f;
}

// 32 elements of the two rows of a lane.
template <class Q>
struct Fragment {
    static constexpr int GROUPS = 32 / Q::GROUP;
    static constexpr int PER = Q::BLOCK / 32;
    u32_t a[4];  // of an mma
    Scale scale[GROUPS][2];
    float minus[GROUPS][2];

    // Block `i` of 32 elements from `row` on. `raw` codes are ZERO too large.
    __device__ Fragment(const u8_t* const (&row)[2], int i, int t, bool raw) {
        for (int r = 0; r < 2; ++r) {
            const u8_t* b = row[r] + i / PER * Q::BYTES;
            const int first = i % PER * 8 + t;
            a[r] = raw ? Q::raw(b, first) : Q::codes(b, first);
            a[2 + r] = raw ? Q::raw(b, first + 4) : Q::codes(b, first + 4);
            for (int j = 0; j < GROUPS; ++j) {
                scale[j][r] = Q::scale(b, i % PER * GROUPS + j);
                minus[j][r] = minus_lift<Q>(scale[j][r].d);
            }
        }
    }
};

// 32 elements of columns: of column g its codes, of columns 2t and 2t + 1 the scales and sums.
struct XFragment {
    uint2 codes;
    float d[2];
    float scaled_sum[2];
    u32_t sums[2];  // of elements 0 to 15, and 16 to 31
};

// sum += 32 elements of rows times those of columns; times column 2t only where C is 1.
template <class Q, bool RAW, int C = 2>
__device__ inline void add_product(float (&sum)[4], const Fragment<Q>& w, const XFragment& x) {
    constexpr int GROUPS = Fragment<Q>::GROUPS;
    for (int j = 0; j < GROUPS; ++j) {
        const u32_t ones = GROUPS == 1 ? 0x0101 : j == 0 ? 0x0001 : 0x0100;
        int products[4] = {LIFT, LIFT, LIFT, LIFT};
        if (RAW && Q::ZERO != 0) {  // what the codes are too large, times those of x
            for (int i = 0; i < 4; ++i) {
                products[i] = dot_of_2(x.sums[i % C], ones * (u32_t)(256 - Q::ZERO), LIFT);
            }
        }
        if (GROUPS == 1) {
            mma_s8_k32(products, w.a, {x.codes.x, x.codes.y});
        } else {
            mma_s8_k16(products, {w.a[2 * j], w.a[2 * j + 1]}, {j == 0 ? x.codes.x : x.codes.y});
        }
        for (int i = 0; i < 4; i += 3 - C) {
            const float of_block = scaled<Q>(products[i], w.scale[j][i / 2].d, w.minus[j][i / 2]);
            sum[i] = fmaf(of_block, x.d[i % 2], sum[i]);
        }
        if (Q::OFFSET) {
            for (int i = 0; i < 4; i += 3 - C) {
                const float of_group = x.d[i % 2] * (float)dot_of_2(x.sums[i % 2], ones, 0);
                const float scaled = GROUPS == 1 ? x.scaled_sum[i % 2] : of_group;
                sum[i] = fmaf(w.scale[j][i / 2].m, scaled, sum[i]);
            }
        }
    }
}

// --- one column ---

// What a block of a row adds to a sum, one after another.
template <class Q>
struct Terms {
    static constexpr int GROUPS = Fragment<Q>::GROUPS;
    float d, products[GROUPS], m[GROUPS], of_x[GROUPS];

    __device__ float added_to(float sum) const {
        for (int j = 0; j < GROUPS; ++j) {
            sum = fmaf(products[j], d, sum);
            if (Q::OFFSET) sum = fmaf(m[j], of_x[j], sum);
        }
        return sum;
    }
};

// 32 elements of one column: block `block` of a chunk of x.
struct OneBlock {
    uint2 codes[4];
    float d;
    float scaled_sum;
    u32_t sums;  // of elements 0 to 15, and 16 to 31

    __device__ OneBlock(const char* chunk, int block) {
        const uint4* four = (const uint4*)(chunk + block * 32);
        for (int i = 0; i < 2; ++i) {
            codes[2 * i] = make_uint2(four[i].x, four[i].y);
            codes[2 * i + 1] = make_uint2(four[i].z, four[i].w);
        }
        d = *(const float*)(chunk + 256 + block * 4);
        scaled_sum = *(const float*)(chunk + 256 + 32 + block * 4);
        sums = *(const u32_t*)(chunk + 256 + 64 + block * 4);
    }

    // Block `i` of 32 elements of a row.
    template <class Q>
    __device__ Terms<Q> times(const u8_t* row, int i) const {
        constexpr int GROUPS = Terms<Q>::GROUPS, PER = Fragment<Q>::PER;
        const u8_t* b = row + i / PER * Q::BYTES;
        int products[2] = {LIFT, GROUPS == 1 ? 0 : LIFT};  // of elements 0 to 15, and 16 to 31
        for (int j = 0; j < 4; ++j) {
            products[0] = dot_of_4(Q::raw(b, i % PER * 8 + j), codes[j].x, products[0]);
            products[1] = dot_of_4(Q::raw(b, i % PER * 8 + 4 + j), codes[j].y, products[1]);
        }
        Terms<Q> terms;
        terms.d = d;
        for (int j = 0; j < GROUPS; ++j) {
            const Scale scale = Q::scale(b, i % PER * GROUPS + j);
            const u32_t ones = GROUPS == 1 ? 0x0101 : j == 0 ? 0x0001 : 0x0100;
            int product = GROUPS == 1 ? products[0] + products[1] : products[j];
            if (Q::ZERO != 0) product = dot_of_2(sums, ones * (u32_t)(256 - Q::ZERO), product);
            terms.products[j] = scaled<Q>(product, scale.d, minus_lift<Q>(scale.d));
            if (Q::OFFSET) {
                terms.m[j] = scale.m;
                terms.of_x[j] = GROUPS == 1 ? scaled_sum : d * (float)dot_of_2(sums, ones, 0);
            }
        }
        return terms;
    }
};
