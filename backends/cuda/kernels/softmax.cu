// Softmax of rows with scale, mask, ALiBi's slopes and sinks.
//
//   s[j] = scale * x[j] + slope(h) * mask[j, q, h % Hm, s % Sm]       -inf where the mask is
//   y[j] = exp(s[j] - m) / (sum_j exp(s[j] - m) + exp(sink(h) - m)),  m = max of s and sink
//
//   x, y [n_kv, n_q, H, S] f32 with contiguous rows, mask f16 or f32, sinks [H] f32
//   grid: rows, or rows / warps of a block for short ones; see reduce_rows.cuh
//   moves 8 bytes an element, and the mask, if a row fits into registers; else x and the mask are
//   read three times, so that a row may be written over x
#include "alibi.cuh"
#include "reduce_rows.cuh"
#include "types.cuh"

struct Args {
    Tensor y;
    Tensor x;
    Tensor mask;
    Tensor sinks;
    float scale;
    float max_bias;
    int mask_is_f16;
    int rows_per_block;
};

// The scores of one row.
struct Scores {
    const float* x;
    const char* mask;  // null without one
    bool mask_is_f16;
    float scale;
    float slope;

    template <class Team>
    __device__ void load(float (&v)[QUADS][4], int tile, int n) const {
        load_tile<Team>(v, x, tile, n, 0.0f);
        float bias[QUADS][4];
        if (mask == nullptr) {
            fill_tile<Team>(bias, tile, n);
        } else if (mask_is_f16) {
            load_halves<Team>(bias, tile, n);
        } else {
            load_tile<Team>(bias, (const float*)mask, tile, n, minus_infinity());
        }
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const bool seen = bias[q][j] != minus_infinity();
                v[q][j] = seen ? fmaf(slope, bias[q][j], scale * v[q][j]) : minus_infinity();
            }
        }
    }

    // No mask: -inf past the end of the row alone.
    template <class Team>
    __device__ static void fill_tile(float (&bias)[QUADS][4], int tile, int n) {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const int i = quad_start<Team>(tile, q);
#pragma unroll
            for (int j = 0; j < 4; ++j) bias[q][j] = i + j < n ? 0.0f : minus_infinity();
        }
    }

    template <class Team>
    __device__ void load_halves(float (&bias)[QUADS][4], int tile, int n) const {
        const bool whole = ((i64_t)mask % 8 | n % 4) == 0;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const int i = quad_start<Team>(tile, q);
            ushort4 bits = {0xfc00, 0xfc00, 0xfc00, 0xfc00};  // -inf
            const u16_t* from = (const u16_t*)mask + i;
            if (whole) {
                if (i < n) bits = *(const ushort4*)from;
            } else {
                if (i < n) bits.x = from[0];
                if (i + 1 < n) bits.y = from[1];
                if (i + 2 < n) bits.z = from[2];
                if (i + 3 < n) bits.w = from[3];
            }
            bias[q][0] = half_to_float(bits.x);
            bias[q][1] = half_to_float(bits.y);
            bias[q][2] = half_to_float(bits.z);
            bias[q][3] = half_to_float(bits.w);
        }
    }
};

struct SoftMax {
    template <class Team>
    __device__ static void row(const Args& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.x, row, run);  // i1 is the query, i2 the head, i3 the sequence
        const Scores scores = scores_of(args, at, run);
        const float sink =
            args.sinks.data ? ((const float*)args.sinks.data)[at.i2] : minus_infinity();
        float* y = row_to(args.y, at);
        const bool held = n <= Team::TILE;

        float v[QUADS][4];
        float largest = minus_infinity();
        for (int tile = 0; tile < n; tile += Team::TILE) {
            scores.load<Team>(v, tile, n);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
#pragma unroll
                for (int j = 0; j < 4; ++j) largest = fmaxf(largest, v[q][j]);
            }
        }
        largest = fmaxf(Team::max(largest), sink);
        if (largest == minus_infinity()) largest = 0.0f;  // nothing is seen: every weight is 0

        float total = 0.0f;
        for (int tile = 0; tile < n; tile += Team::TILE) {
            if (!held) scores.load<Team>(v, tile, n);
            exponentials(v, largest);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
#pragma unroll
                for (int j = 0; j < 4; ++j) total += v[q][j];
            }
        }
        total = Team::sum(total) + expf(sink - largest);
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;

        for (int tile = 0; tile < n; tile += Team::TILE) {
            if (!held) {
                scores.load<Team>(v, tile, n);
                exponentials(v, largest);
            }
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
#pragma unroll
                for (int j = 0; j < 4; ++j) v[q][j] *= factor;
            }
            store_tile<Team>(v, y, tile, n);
        }
    }

    __device__ static Scores scores_of(const Args& args, const Row& at, const Run& run) {
        const char* mask = nullptr;
        if (args.mask.data) {
            const int i2 = at.i2 % args.mask.ne[2].at(run), i3 = at.i3 % args.mask.ne[3].at(run);
            mask = args.mask.at(at.i1, i2, i3);
        }
        float slope = 1.0f;
        if (args.max_bias > 0.0f) slope = alibi_slope(args.max_bias, at.i2, args.x.ne[2].at(run));
        return {row_at(args.x, at), mask, args.mask_is_f16 != 0, args.scale, slope};
    }

    // v = exp(v - largest)
    __device__ static void exponentials(float (&v)[QUADS][4], float largest) {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
#pragma unroll
            for (int j = 0; j < 4; ++j) v[q][j] = expf(v[q][j] - largest);
        }
    }
};

KERNEL(soft_max, Args, BLOCK) { run_rows<SoftMax>(args, args.x, run); }
