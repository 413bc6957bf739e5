// What the tags of quantised types share: codes four at a time, bytes at any address, and the functions
// that follow from a type's `scale` and `raw`. See quants.cuh.
#pragma once
#include "types.cuh"

struct Scale {
    float d;
    float m;  // 0 without OFFSET
};

// --- four codes at once -----------------------------------------------------------------------------

// Bytes below 128, less a number each.
__device__ inline u32_t bytes_minus(u32_t bytes, u32_t less) {
    return ((bytes | 0x80808080u) - less) ^ 0x80808080u;
}

// The low or high nibbles of four bytes.
__device__ inline u32_t nibbles(u32_t bytes, bool high) {
    return (high ? bytes >> 4 : bytes) & 0x0f0f0f0fu;
}

// Bits 0 to 3, each in the lowest bit of a byte.
__device__ inline u32_t spread_bits(u32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// Four numbers of 2 bits, each in a byte.
__device__ inline u32_t spread_pairs(u32_t pairs) {
    pairs = (pairs | pairs << 12) & 0x000f000fu;
    return (pairs | pairs << 6) & 0x03030303u;
}

// Four numbers of 4 bits, each in a byte.
__device__ inline u32_t spread_nibbles(u32_t four) {
    four = (four | four << 8) & 0x00ff00ffu;
    return (four | four << 4) & 0x0f0f0f0fu;
}

// Bytes from 1 to 127; those whose bit of `signs` is set are negated.
__device__ inline u32_t with_signs(u32_t bytes, u32_t signs) {
    const u32_t ones = spread_bits(signs);
    return (bytes ^ ones * 255) + ones;
}

// Signs of 8 elements of which 7 are stored: there is an even number of them.
__device__ inline u32_t eight_signs(u32_t seven) { return seven | (u32_t)(__popc(seven) & 1) << 7; }

// What the nibbles of four bytes stand for in a table of 16 bytes. The eight entries are found in the
// order of the nibbles, which is low, high of each byte.
template <class Table>
__device__ inline u32_t looked_up(u32_t bytes, bool high) {
    const u32_t within = bytes & 0x77777777u;                        // eight entries
    const u32_t of_half = (bytes >> 1 & 0x44444444u) | 0x32103210u;  // 4 more in the upper half
    const u32_t front = __byte_perm(
        __byte_perm(Table::AT0, Table::AT4, within), __byte_perm(Table::AT8, Table::AT12, within),
        of_half & 0xffffu
    );
    const u32_t back = __byte_perm(
        __byte_perm(Table::AT0, Table::AT4, within >> 16),
        __byte_perm(Table::AT8, Table::AT12, within >> 16), of_half >> 16
    );
    return __byte_perm(front, back, high ? 0x7531 : 0x6420);
}

// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
struct Iq4Table {
    static constexpr u32_t AT0 = 0xbfad9881u, AT4 = 0xf6eaddcfu;
    static constexpr u32_t AT8 = 0x26190d01u, AT12 = 0x71594535u;
};

// Twice the numbers of 1 bit sign, 2 bits exponent, 1 bit mantissa: 0, 1, 2, 3, 4, 6, 8, 12 and -
struct Fp4Table {
    static constexpr u32_t AT0 = 0x03020100u, AT4 = 0x0c080604u;
    static constexpr u32_t AT8 = 0xfdfeff00u, AT12 = 0xf4f8fafcu;
};

// --- bytes at any address ---------------------------------------------------------------------------

// Whether memory is shared, which the compiler knows. Words may be read there that blocks only end in.
__device__ inline bool is_shared(const void* at) {
#ifdef GGMLPY_EMULATED
    const size_t from_first = (size_t)at - (size_t)emulated_dynamic_shared();
    return from_first < 227 << 10;
#else
    return __isShared(at);
#endif
}

// Four bytes, of the words that have any of them.
__device__ inline u32_t unaligned_word(const u8_t* at) {
    const int behind = (int)(size_t)at & 3;
    const u32_t low = *(const u32_t*)(at - behind), high = *(const u32_t*)(at + (-behind & 3));
    return __funnelshift_r(low, high, behind * 8);
}

// --- what types share -------------------------------------------------------------------------------

template <class Q, int N, int N_BYTES, int SIZE, int CODE_OF_0 = 0, bool HAS_OFFSET = false>
struct Quantised {
    typedef float Value;
    static constexpr int BLOCK = N;
    static constexpr int BYTES = N_BYTES;
    static constexpr int GROUP = SIZE;
    static constexpr int ZERO = CODE_OF_0;
    static constexpr bool OFFSET = HAS_OFFSET;
    static constexpr int ALIGN = N_BYTES % 4 == 0 ? 4 : N_BYTES % 2 == 0 ? 2 : 1;

    __device__ static float load(const char* row, i64_t i) {
        const u8_t* block = (const u8_t*)row + i / BLOCK * BYTES;
        const int at = (int)(i % BLOCK);
        const Scale scale = Q::scale(block, at / GROUP);
        const float code = (float)(i8_t)(codes(block, at / 4) >> at % 4 * 8);
        return OFFSET ? scale.d * code + scale.m : scale.d * code;
    }

    __device__ static u32_t codes(const u8_t* block, int i) {
        const u32_t raw = Q::raw(block, i);
        return ZERO == 0 ? raw : bytes_minus(raw, ZERO * 0x01010101u);
    }

    // Elements i to i + 3, i a multiple of 4: they have one scale, and their codes are one word.
    __device__ static void load_four(const char* row, i64_t i, float (&v)[4]) {
        const u8_t* block = (const u8_t*)row + i / BLOCK * BYTES;
        const int at = (int)(i % BLOCK);
        const Scale scale = Q::scale(block, at / GROUP);
        const u32_t codes = Q::codes(block, at / 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float code = (float)(i8_t)(codes >> j * 8);
            v[j] = OFFSET ? scale.d * code + scale.m : scale.d * code;
        }
    }

    __device__ static u32_t word(const u8_t* at) {
        if (ALIGN == 4) return *(const u32_t*)at;
        if (ALIGN == 2) return ((const u16_t*)at)[0] | (u32_t)((const u16_t*)at)[1] << 16;
        if (is_shared(at)) return unaligned_word(at);
        return at[0] | (u32_t)at[1] << 8 | (u32_t)at[2] << 16 | (u32_t)at[3] << 24;
    }

    __device__ static float half(const u8_t* at) { return half_to_float(*(const u16_t*)at); }
};
