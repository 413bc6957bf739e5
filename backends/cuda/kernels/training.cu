// Gradients, the loss, and steps of optimisers: all f32.
//
//   rows       any strides, their elements contiguous; a warp's or a block's, see reduce_rows.cuh
//   optimisers tensors without gaps; a thread for each piece
#include "elementwise.cuh"
#include "reduce_rows.cuh"
#include "unary_functions.cuh"

constexpr int THREADS = 256;

// The sum over this team's row of term(i).
template <class Team, class Term>
__device__ static float sum_of_row(int n, Term term) {
    float sum = 0.0f;
    for (int i = Team::rank(); i < n; i += Team::SIZE) sum += term(i);
    return Team::sum(sum);
}

template <class Team>
__device__ static float dot_of_rows(const float* a, const float* b, int n) {
    float sum = 0.0f;
    for (int i = Team::rank(); i < n; i += Team::SIZE) sum = fmaf(a[i], b[i], sum);
    return Team::sum(sum);
}

// The piece of a tensor of floats.
__device__ static void load(const Tensor& x, const Row& row, const Piece& piece, float (&v)[PIECE]) {
    const char* at = x.at(row.i1, row.i2, row.i3) + (i64_t)piece.first * 4;
    load_piece(TYPE_F32, at, 4, piece.n, v);
}
__device__ static void store(
    const Tensor& y, const Row& row, const Piece& piece, const float (&v)[PIECE]
) {
    char* at = y.at(row.i1, row.i2, row.i3) + (i64_t)piece.first * 4;
    store_piece(TYPE_F32, at, 4, piece.n, v);
}

// --- gradients ------------------------------------------------------------------------------------

struct SiluArgs {
    Tensor y;
    Tensor grad;
    Tensor x;
};

// y = grad s (1 + x (1 - s)), s = sigmoid(x)
KERNEL(silu_back, SiluArgs, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    float x[PIECE], grad[PIECE];
    load(args.x, row, piece, x);
    load(args.grad, row, piece, grad);
    for (int i = 0; i < PIECE; ++i) {
        const float s = sigmoid(x[i]);
        grad[i] *= s * fmaf(x[i], 1.0f - s, 1.0f);
    }
    store(args.y, row, piece, grad);
}

struct NormArgs {
    Tensor y;
    Tensor grad;
    Tensor x;
    float eps;
    int rows_per_block;
};

// y = (grad - x dot(x, grad) / (sum(x^2) + n eps)) / sqrt(mean(x^2) + eps)
struct RmsNormBack {
    template <class Team>
    __device__ static void row(const NormArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.x, row, run);
        const float *x = row_at(args.x, at), *grad = row_at(args.grad, at);
        float* y = row_to(args.y, at);
        const float squares = dot_of_rows<Team>(x, x, n);
        const float along = dot_of_rows<Team>(x, grad, n) / (squares + n * args.eps);
        const float factor = 1.0f / sqrtf(squares / n + args.eps);
        for (int i = Team::rank(); i < n; i += Team::SIZE) {
            y[i] = fmaf(x[i], -along, grad[i]) * factor;
        }
    }
};

KERNEL(rms_norm_back, NormArgs, BLOCK) { run_rows<RmsNormBack>(args, args.x, run); }

struct SoftMaxArgs {
    Tensor y;
    Tensor grad;
    Tensor weights;
    float scale;
    int rows_per_block;
};

// y = scale weights (grad - dot(weights, grad))
struct SoftMaxBack {
    template <class Team>
    __device__ static void row(const SoftMaxArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.grad, row, run);
        const float *grad = row_at(args.grad, at), *weights = row_at(args.weights, at);
        float* y = row_to(args.y, at);
        const float dot = dot_of_rows<Team>(weights, grad, n);
        for (int i = Team::rank(); i < n; i += Team::SIZE) {
            y[i] = weights[i] * ((grad[i] - dot) * args.scale);
        }
    }
};

KERNEL(soft_max_back, SoftMaxArgs, BLOCK) { run_rows<SoftMaxBack>(args, args.grad, run); }

// --- the loss -------------------------------------------------------------------------------------

// The largest logit; 0 if all are -inf, as a difference to it must not be NaN.
template <class Team>
__device__ static float largest_of_row(const float* x, int n) {
    float largest = minus_infinity();
    for (int i = Team::rank(); i < n; i += Team::SIZE) largest = fmaxf(largest, x[i]);
    largest = Team::max(largest);
    return largest == minus_infinity() ? 0.0f : largest;
}

struct LossRowArgs {
    Tensor logits;
    Tensor labels;
    Span sums;  // of rows, f32
    int rows_per_block;
};

// The sum of labels times the logarithm of softmax. A label of 0 counts as nothing.
struct LossOfRow {
    template <class Team>
    __device__ static void row(const LossRowArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.logits, row, run);
        const float *logits = row_at(args.logits, at), *labels = row_at(args.labels, at);
        const float largest = largest_of_row<Team>(logits, n);
        const float total =
            sum_of_row<Team>(n, [&](int i) { return expf(logits[i] - largest); });
        const float log_total = logf(total);
        const float sum = sum_of_row<Team>(n, [&](int i) {
            return labels[i] == 0.0f ? 0.0f : labels[i] * (logits[i] - largest - log_total);
        });
        if (Team::rank() == 0) ((float*)args.sums.data)[row] = sum;
    }
};

KERNEL(cross_entropy_rows, LossRowArgs, BLOCK) { run_rows<LossOfRow>(args, args.logits, run); }

struct LossArgs {
    Tensor y;
    Tensor logits;
    Span sums;
};

// y = minus the mean of the rows' sums: one block
KERNEL(cross_entropy_loss, LossArgs, THREADS) {
    __shared__ double partial[THREADS];
    const i64_t n_rows = args.logits.n_rows(run);
    const float* sums = (const float*)args.sums.data;
    double sum = 0.0;
    for (i64_t row = threadIdx.x; row < n_rows; row += THREADS) sum += sums[row];
    partial[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) f32::store(args.y.data, 0, (float)(-partial[0] / n_rows));
}

struct LossBackArgs {
    Tensor y;
    Tensor grad;  // one element
    Tensor logits;
    Tensor labels;
    int rows_per_block;
};

// y = (softmax(logits) - labels) grad / rows
struct LossBack {
    template <class Team>
    __device__ static void row(const LossBackArgs& args, const Run& run, i64_t row, int n) {
        const Row at = row_of(args.logits, row, run);
        const float *logits = row_at(args.logits, at), *labels = row_at(args.labels, at);
        float* y = row_to(args.y, at);
        const float largest = largest_of_row<Team>(logits, n);
        const float total =
            sum_of_row<Team>(n, [&](int i) { return expf(logits[i] - largest); });
        const float share = 1.0f / total;
        const float factor = f32::load(args.grad.data, 0) / (float)args.logits.n_rows(run);
        for (int i = Team::rank(); i < n; i += Team::SIZE) {
            y[i] = fmaf(expf(logits[i] - largest), share, -labels[i]) * factor;
        }
    }
};

KERNEL(cross_entropy_loss_back, LossBackArgs, BLOCK) { run_rows<LossBack>(args, args.logits, run); }

// --- optimisers -----------------------------------------------------------------------------------

struct MomentArgs {
    Tensor y;
    Tensor x;
    Tensor grad;
    Tensor params;
    int i_beta;   // which of the params is its factor
    int squares;  // it is the mean of squares
};

// y = x beta + grad (1 - beta), or with the square of grad
KERNEL(adamw_moment, MomentArgs, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    const float beta = f32::load(args.params.data, args.i_beta);
    float x[PIECE], grad[PIECE];
    load(args.x, row, piece, x);
    load(args.grad, row, piece, grad);
    for (int i = 0; i < PIECE; ++i) {
        const float g = args.squares ? grad[i] * grad[i] : grad[i];
        x[i] = fmaf(x[i], beta, g * (1.0f - beta));
    }
    store(args.y, row, piece, x);
}

struct AdamWArgs {
    Tensor y;
    Tensor w;
    Tensor m;
    Tensor v;
    Tensor params;  // alpha, beta1, beta2, eps, wd, beta1h, beta2h
};

// y = w (1 - alpha wd) - alpha (m beta1h) / (sqrt(v beta2h) + eps)
KERNEL(adamw_weight, AdamWArgs, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    const float* params = (const float*)args.params.data;
    const float alpha = params[0], eps = params[3], beta1h = params[5], beta2h = params[6];
    const float keep = 1.0f - alpha * params[4];
    float w[PIECE], m[PIECE], v[PIECE];
    load(args.w, row, piece, w);
    load(args.m, row, piece, m);
    load(args.v, row, piece, v);
    for (int i = 0; i < PIECE; ++i) {
        const float step = m[i] * beta1h * alpha / (sqrtf(v[i] * beta2h) + eps);
        w[i] = fmaf(w[i], keep, -step);
    }
    store(args.y, row, piece, w);
}

struct SgdArgs {
    Tensor y;
    Tensor w;
    Tensor grad;
    Tensor params;  // alpha, wd
};

// y = w (1 - alpha wd) - alpha grad
KERNEL(sgd, SgdArgs, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    const float* params = (const float*)args.params.data;
    const float alpha = params[0], keep = 1.0f - alpha * params[1];
    float w[PIECE], grad[PIECE];
    load(args.w, row, piece, w);
    load(args.grad, row, piece, grad);
    for (int i = 0; i < PIECE; ++i) w[i] = fmaf(w[i], keep, -alpha * grad[i]);
    store(args.y, row, piece, w);
}
