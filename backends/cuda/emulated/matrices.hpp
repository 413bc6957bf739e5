// Part of emulator.cpp: mma and ldmatrix. The lane that comes last computes for all of the warp.
#pragma once

struct Mma {
    int kind;
    void* d;
    const u32* a;
    const u32* b;
};

static float of_f16(u32 bits) {
    const uint16_t low = (uint16_t)bits;
    _Float16 v;
    memcpy(&v, &low, 2);
    return (float)v;
}

static float of_bf16(u32 bits) {
    bits <<= 16;
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

// PER elements in a register; K is 8 * PER, or half of that.
template <int K, int PER, class Number, class Sum, class Result, class F>
static void multiply(const Fiber* lanes, F element) {
    Number a[16][K], b[8][K];
    constexpr int BITS = 32 / PER;
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& of = *(const Mma*)lanes[lane].value;
        const int g = lane / 4, t = lane % 4;
        for (int half = 0; half < K / (4 * PER); ++half) {
            for (int i = 0; i < PER; ++i) {
                const int k = half * 4 * PER + t * PER + i;
                a[g][k] = element(of.a[half * 2] >> i * BITS);
                a[g + 8][k] = element(of.a[half * 2 + 1] >> i * BITS);
                b[g][k] = element(of.b[half] >> i * BITS);
            }
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        Result* d = (Result*)((const Mma*)lanes[lane].value)->d;
        for (int i = 0; i < 4; ++i) {
            const Number* row = a[lane / 4 + i / 2 * 8];
            const Number* col = b[lane % 4 * 2 + i % 2];
            Sum sum = (Sum)d[i];
            for (int k = 0; k < K; ++k) sum += (Sum)row[k] * (Sum)col[k];
            d[i] = (Result)sum;
        }
    }
}

EXPORTED void emulated_mma(int kind, void* d, const u32* a, const u32* b) {
    const void* pc = CALLED_FROM;
    const Mma mine = {kind, d, a, b};
    self->value = (u64)&mine;
    if (!last_of(pc, ~0u, Op::MMA)) return;
    const Fiber* lanes = self - self->linear % 32;
    if (warps[self->linear / 32].exists != ~0u) fail(pc, "mma in a warp of less than 32 threads");
    for (int lane = 0; lane < 32; ++lane) {
        if (((const Mma*)lanes[lane].value)->kind != kind) fail(pc, "lanes meet at different mma");
    }
    const auto s8 = [](u32 bits) { return (int)(int8_t)bits; };
    if (kind == 0) multiply<16, 2, float, double, float>(lanes, of_f16);
    if (kind == 1) multiply<16, 2, float, double, float>(lanes, of_bf16);
    if (kind == 2) multiply<32, 4, int, u32, int>(lanes, s8);
    if (kind == 3) multiply<16, 4, int, u32, int>(lanes, s8);
    release(~0u);
}

struct Matrices {
    int n;
    int transposed;
    u32* r;
    const uint16_t* row;
};

EXPORTED void emulated_ldmatrix(int n, int transposed, u32* r, const void* shared_row) {
    const void* pc = CALLED_FROM;
    if ((int)(self->linear % 32) < n * 8) {
        if ((uintptr_t)shared_row % 16) {
            fail(pc, "ldmatrix: the row at %p is not aligned to 16 bytes", shared_row);
        }
        check_read(pc, shared_row, 16);
    }
    const Matrices mine = {n, transposed, r, (const uint16_t*)shared_row};
    self->value = (u64)&mine;
    if (!last_of(pc, ~0u, Op::LDMATRIX)) return;
    if (warps[self->linear / 32].exists != ~0u) fail(pc, "ldmatrix in a warp of less than 32 threads");
    const Fiber* lanes = self - self->linear % 32;
    const Matrices* of[32];
    for (int lane = 0; lane < 32; ++lane) {
        of[lane] = (const Matrices*)lanes[lane].value;
        if (of[lane]->n != n || of[lane]->transposed != transposed) {
            fail(pc, "lanes meet at different ldmatrix");
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t2 = lane % 4 * 2;
        for (int m = 0; m < n; ++m) {
            const Matrices* const* rows = of + m * 8;
            const u32 low = transposed ? rows[t2]->row[g] : rows[g]->row[t2];
            const u32 high = transposed ? rows[t2 + 1]->row[g] : rows[g]->row[t2 + 1];
            of[lane]->r[m] = low | high << 16;
        }
    }
    release(~0u);
}
