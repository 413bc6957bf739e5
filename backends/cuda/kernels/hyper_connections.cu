// Hyper-connections: mixing residual streams. C streams, E elements, T tokens.
//
//   dsv4_hc_comb      a block of one warp for some tokens, of which each has a matrix in shared memory
//   dsv4_hc_pre       a thread for each piece of y: bandwidth-bound
//   dsv4_hc_post      a thread for each piece of a token, for all streams: bandwidth-bound
#include "elementwise.cuh"
#include "unary_functions.cuh"

constexpr int WARP = 32;
constexpr int THREADS = 128;

struct CombArgs {
    Tensor y;
    Tensor mixes;  // [(2 + C) * C, T]
    Tensor scale;
    Tensor base;
    float eps;
    int n_iter;
    int n_tokens;  // of a block
};

struct PreArgs {
    Tensor y;
    Tensor x;        // [E, C, T]
    Tensor weights;  // [C, T], or [E, C, T]
    float scale;
    int gated;
};

struct PostArgs {
    Tensor y;         // [E, C, T]
    Tensor x;         // [E, T]
    Tensor residual;  // [E, C, T]
    Tensor post;      // [C, T]
    Tensor comb;      // [C, C, T]
};

// n numbers, `apart` from one another, become eps + their softmax.
__device__ inline void softmax(float* m, int n, int apart, float eps) {
    float largest = m[0], total = 0.0f;
    for (int i = 1; i < n; ++i) largest = at_least(m[i * apart], largest);
    for (int i = 0; i < n; ++i) {
        const float e = expf(m[i * apart] - largest);
        m[i * apart] = e;
        total += e;
    }
    for (int i = 0; i < n; ++i) m[i * apart] = m[i * apart] / total + eps;
}

// n numbers, `apart` from one another, are divided by eps and their sum.
__device__ inline void divide_by_sum(float* m, int n, int apart, float eps) {
    float total = eps;
    for (int i = 0; i < n; ++i) total += m[i * apart];
    for (int i = 0; i < n; ++i) m[i * apart] /= total;
}

// m[dst, src] = mixes[2 C + dst + C src] * scale[2] + base[2 C + dst + C src], then eps + the softmax over
// dst, divided by sums over src; n_iter - 1 times more by sums over dst and sums over src.
KERNEL(dsv4_hc_comb, CombArgs, WARP) {
    DYNAMIC_SHARED(float, matrices);
    const Tensor &mixes = args.mixes, &base = args.base;
    const int n = args.y.ne[0].at(run), square = n * n;
    const i64_t first = (i64_t)blockIdx.x * args.n_tokens;
    const int here = (int)min((i64_t)args.n_tokens, args.y.ne[2].at(run) - first);
    if (here <= 0) return;
    const float scale = f32::load(args.scale.data + 2 * args.scale.nb[0], 0);
    for (int i = threadIdx.x; i < here * square; i += WARP) {
        const i64_t from = 2 * n + i % square;
        const float mix = f32::load(mixes.at(from, first + i / square, 0, 0), 0);
        matrices[i] = fmaf(mix, scale, f32::load(base.data + from * base.nb[0], 0));
    }
    // A thread has line `i` of all tokens' matrices: a row or a column.
    for (int turn = 0; turn < args.n_iter; ++turn) {
        __syncwarp();
        for (int i = threadIdx.x; i < here * n; i += WARP) {
            float* row = matrices + i * n;
            if (turn == 0) {
                softmax(row, n, 1, args.eps);
            } else {
                divide_by_sum(row, n, 1, args.eps);
            }
        }
        __syncwarp();
        for (int i = threadIdx.x; i < here * n; i += WARP) {
            divide_by_sum(matrices + i / n * square + i % n, n, n, args.eps);
        }
    }
    __syncwarp();
    for (int i = threadIdx.x; i < here * square; i += WARP) {
        f32::store(args.y.at(0, first + i / square, 0), i % square, matrices[i]);
    }
}

// y[i, t] = scale * sum_c x[i, c, t] * weights[c, t], or sigmoid(weights[i, c, t]): streams in order
KERNEL(dsv4_hc_pre, PreArgs, THREADS) {
    const Tensor &x = args.x, &w = args.weights;
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const i64_t t = piece.row, first = piece.first;
    const int n_streams = x.ne[1].at(run);
    float sums[PIECE] = {};
    for (int c = 0; c < n_streams; ++c) {
        float v[PIECE], weights[PIECE];
        load_piece(TYPE_F32, x.at(first, c, t, 0), x.nb[0], piece.n, v);
        if (args.gated) {
            load_piece(TYPE_F32, w.at(first, c, t, 0), w.nb[0], piece.n, weights);
        }
        const float of_all = args.gated ? 0.0f : f32::load(w.at(c, t, 0, 0), 0);
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
            sums[i] = fmaf(v[i], args.gated ? sigmoid(weights[i]) : of_all, sums[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < PIECE; ++i) sums[i] *= args.scale;
    store_piece(TYPE_F32, args.y.at(first, t, 0, 0), args.y.nb[0], piece.n, sums);
}

// y[i, dst, t] = x[i, t] * post[dst, t] + sum_src residual[i, src, t] * comb[dst, src, t]: in order of src.
// Without comb a stream keeps its residual.
KERNEL(dsv4_hc_post, PostArgs, THREADS) {
    const Tensor &y = args.y, &x = args.x, &residual = args.residual, &comb = args.comb;
    const Piece piece = piece_of(x, run);
    if (piece.n == 0) return;
    const i64_t t = piece.row, first = piece.first;
    const int n_streams = y.ne[1].at(run);
    float v[PIECE];
    load_piece(TYPE_F32, x.at(first, t, 0, 0), x.nb[0], piece.n, v);
    for (int dst = 0; dst < n_streams; ++dst) {
        const float post = f32::load(args.post.at(dst, t, 0, 0), 0);
        float sums[PIECE], stream[PIECE];
#pragma unroll
        for (int i = 0; i < PIECE; ++i) sums[i] = v[i] * post;
        const int begin = comb.data ? 0 : dst, end = comb.data ? n_streams : dst + 1;
        for (int src = begin; src < end; ++src) {
            load_piece(TYPE_F32, residual.at(first, src, t, 0), residual.nb[0], piece.n, stream);
            const float share = comb.data ? f32::load(comb.at(dst, src, t, 0), 0) : 1.0f;
#pragma unroll
            for (int i = 0; i < PIECE; ++i) sums[i] = fmaf(stream[i], share, sums[i]);
        }
        store_piece(TYPE_F32, y.at(first, dst, t, 0), y.nb[0], piece.n, sums);
    }
}
