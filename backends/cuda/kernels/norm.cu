// Normalisation of rows, alone and fused with the operations beside it.
//
//   x, y [n, ...] f32 with contiguous rows; weight, b repeat to them
//   grid: rows, or rows / warps of a block for short ones; see reduce_rows.cuh
//   moves 8 bytes an element if a row fits into registers (4096 floats): it is read once
//
// Fused kernels round every number as the single ones do, so that results have the same bits.
#include "reduce_rows.cuh"

struct Args {
    Tensor y;
    Tensor x;
    Tensor weight;
    Tensor b;
    float eps;
    int rows_per_block;
};

struct GroupArgs {
    Tensor y;
    Tensor x;
    int n_groups;
    float eps;
    int rows_per_block;
};

struct ResidualArgs {
    Tensor y;
    Tensor sum;
    Tensor a;
    Tensor b;
    Tensor inner;
    Tensor weight;
    float inner_eps;
    float eps;
    int rows_per_block;
};

// This thread's share of sum (v - minus)^2 over a tile. What is past the end of the row is left out.
template <class Team>
__device__ inline float add_squares(float sum, const float (&v)[QUADS][4], float minus, int tile, int n) {
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (quad_start<Team>(tile, q) + j < n) {
                const float centred = v[q][j] - minus;
                sum = fmaf(centred, centred, sum);
            }
        }
    }
    return sum;
}

// v = (v - minus) * factor
__device__ inline void shift_and_scale(float (&v)[QUADS][4], float minus, float factor) {
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[q][j] = (v[q][j] - minus) * factor;
    }
}

// A row that another one is multiplied by, or added to; null for none. It is loaded before the sums of
// a row that stays in registers: blocks of a single row would wait for it later.
template <class Team>
struct Operand {
    const float* row;
    int n;
    float v[QUADS][4];

    __device__ Operand(const float* row, int n) : row(row), n(n) {
        if (row && n <= Team::TILE) load_tile<Team>(v, row, 0, n, 0.0f);
    }
    __device__ void load(int tile) {
        if (n > Team::TILE) load_tile<Team>(v, row, tile, n, 0.0f);
    }
    __device__ void multiply(float (&x)[QUADS][4], int tile) {
        load(tile);
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
#pragma unroll
            for (int j = 0; j < 4; ++j) x[q][j] = x[q][j] * v[q][j];
        }
    }
    __device__ void add(float (&x)[QUADS][4], int tile) {
        load(tile);
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
#pragma unroll
            for (int j = 0; j < 4; ++j) x[q][j] = x[q][j] + v[q][j];
        }
    }
};

// What a norm takes off a row, and what it multiplies the rest by.
struct Moments {
    float minus;
    float factor;
};

// Measure::of<Team>(v, x, n, eps) is the moments of a row. It leaves the last tile of the row in v.
struct Rms {
    template <class Team>
    __device__ static Moments of(float (&v)[QUADS][4], const float* x, int n, float eps) {
        float squares = 0.0f;
        for (int tile = 0; tile < n; tile += Team::TILE) {
            load_tile<Team>(v, x, tile, n, 0.0f);
            squares = add_squares<Team>(squares, v, 0.0f, tile, n);
        }
        return {0.0f, 1.0f / sqrtf(Team::sum(squares) / n + eps)};
    }
};

struct Length {
    template <class Team>
    __device__ static Moments of(float (&v)[QUADS][4], const float* x, int n, float eps) {
        float squares = 0.0f;
        for (int tile = 0; tile < n; tile += Team::TILE) {
            load_tile<Team>(v, x, tile, n, 0.0f);
            squares = add_squares<Team>(squares, v, 0.0f, tile, n);
        }
        return {0.0f, 1.0f / fmaxf(eps, sqrtf(Team::sum(squares)))};
    }
};

struct Deviation {
    template <class Team>
    __device__ static Moments of(float (&v)[QUADS][4], const float* x, int n, float eps) {
        float sum = 0.0f;
        for (int tile = 0; tile < n; tile += Team::TILE) {
            load_tile<Team>(v, x, tile, n, 0.0f);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum += v[q][j];
            }
        }
        const float mean = Team::sum(sum) / n;
        float squares = 0.0f;
        for (int tile = 0; tile < n; tile += Team::TILE) {
            if (n > Team::TILE) load_tile<Team>(v, x, tile, n, 0.0f);
            squares = add_squares<Team>(squares, v, mean, tile, n);
        }
        return {mean, 1.0f / sqrtf(Team::sum(squares) / n + eps)};
    }
};

// y = norm(x) [* weight [+ b]]
template <class Team, class Measure>
__device__ inline void normalise(
    const float* x, float* y, int n, float eps, const float* weight_row, const float* b_row
) {
    Operand<Team> weight(weight_row, n), b(b_row, n);
    float v[QUADS][4];
    const Moments moments = Measure::template of<Team>(v, x, n, eps);
    for (int tile = 0; tile < n; tile += Team::TILE) {
        if (n > Team::TILE) load_tile<Team>(v, x, tile, n, 0.0f);
        shift_and_scale(v, moments.minus, moments.factor);
        if (weight_row) weight.multiply(v, tile);
        if (b_row) b.add(v, tile);
        store_tile<Team>(v, y, tile, n);
    }
}

template <class Measure>
struct RowNorm {
    template <class Team>
    __device__ static void row(const Args& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.x, row, run);
        const float* weight = args.weight.data ? repeated_row(args.weight, at, run) : nullptr;
        const float* b = args.b.data ? repeated_row(args.b, at, run) : nullptr;
        normalise<Team, Measure>(row_at(args.x, at), row_to(args.y, at), n, args.eps, weight, b);
    }
};

// y = x / sqrt(mean(x^2) + eps)
KERNEL(rms_norm, Args, BLOCK) { run_rows<RowNorm<Rms>>(args, args.x, run); }

// y = (x - mean) / sqrt(variance + eps). CUDA has a function `norm`.
KERNEL(layer_norm, Args, BLOCK) { run_rows<RowNorm<Deviation>>(args, args.x, run); }

// y = x / max(sqrt(sum(x^2)), eps)
KERNEL(l2_norm, Args, BLOCK) { run_rows<RowNorm<Length>>(args, args.x, run); }

// As norm, with a group of channels, contiguous planes, as one row.
struct GroupNorm {
    template <class Team>
    __device__ static void row(const GroupArgs& args, const Run& run, i64_t group, int n) {
        const Tensor& x = args.x;
        const int n_channels = x.ne[2].at(run);
        const int per_group = (n_channels + args.n_groups - 1) / args.n_groups;
        const int n_groups = (n_channels + per_group - 1) / per_group;  // that have channels
        const i64_t i3 = group / n_groups;
        const i64_t channel = (group - i3 * n_groups) * per_group;
        const float* from = (const float*)x.at(0, channel, i3);
        normalise<Team, Deviation>(from, (float*)args.y.at(0, channel, i3), n, args.eps, nullptr, nullptr);
    }
};

KERNEL(group_norm, GroupArgs, BLOCK) {
    const Tensor& x = args.x;
    const int n_channels = x.ne[2].at(run);
    const int per_group = (n_channels + args.n_groups - 1) / args.n_groups;
    const int n_groups = (n_channels + per_group - 1) / per_group;
    const i64_t group = row_of_team(args.rows_per_block);
    if (group >= (i64_t)n_groups * x.ne[3].at(run)) return;
    const int first = (int)(group % n_groups) * per_group;
    const int in_group = min(per_group, n_channels - first);
    run_row<GroupNorm>(args, run, group, x.ne[0].at(run) * x.ne[1].at(run) * in_group);
}

// sum = a + b, or where INNER rms_norm(a) * inner + b;  y = rms_norm(sum) * weight. A sum that has no
// memory stays in registers; rows too long for them lie in y meanwhile.
template <bool INNER>
struct Residual {
    template <class Team>
    __device__ static void row(const ResidualArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.a, row, run);
        const float* a = row_at(args.a, at);
        Operand<Team> b(row_at(args.b, at), n);
        Operand<Team> inner(INNER ? repeated_row(args.inner, at, run) : nullptr, n);
        Operand<Team> weight(repeated_row(args.weight, at, run), n);
        float* y = row_to(args.y, at);
        const bool held = n <= Team::TILE;
        float* total = args.sum.data ? row_to(args.sum, at) : held ? nullptr : y;

        float v[QUADS][4];
        Moments of_a = {0.0f, 1.0f};
        if (INNER) of_a = Rms::of<Team>(v, a, n, args.inner_eps);
        float squares = 0.0f;
        for (int tile = 0; tile < n; tile += Team::TILE) {
            if (!(INNER && held)) load_tile<Team>(v, a, tile, n, 0.0f);
            if (INNER) {
                shift_and_scale(v, of_a.minus, of_a.factor);
                inner.multiply(v, tile);
            }
            b.add(v, tile);
            if (total) store_tile<Team>(v, total, tile, n);
            squares = add_squares<Team>(squares, v, 0.0f, tile, n);
        }
        const float factor = 1.0f / sqrtf(Team::sum(squares) / n + args.eps);
        for (int tile = 0; tile < n; tile += Team::TILE) {
            if (!held) load_tile<Team>(v, total, tile, n, 0.0f);
            shift_and_scale(v, 0.0f, factor);
            weight.multiply(v, tile);
            store_tile<Team>(v, y, tile, n);
        }
    }
};

KERNEL(residual, ResidualArgs, BLOCK) { run_rows<Residual<false>>(args, args.a, run); }
KERNEL(residual_of_norm, ResidualArgs, BLOCK) { run_rows<Residual<true>>(args, args.a, run); }
