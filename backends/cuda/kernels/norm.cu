// Normalisation of rows. Elements of a row are added up in an order that its length alone decides.
#include "common.cuh"

constexpr int THREADS = 256;

struct Args {
    Tensor y;
    Tensor x;
    float eps;
};

// The sum of (x - minus)^2 over a row.
__device__ static float sum_of_squares(const float* x, int n, float minus) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const float v = x[i] - minus;
        sum = fmaf(v, v, sum);
    }
    return block_sum<THREADS>(sum);
}

__device__ static float sum_of(const float* x, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += THREADS) sum += x[i];
    return block_sum<THREADS>(sum);
}

__device__ static void shift_and_scale(const float* x, float* y, int n, float minus, float factor) {
    for (int i = threadIdx.x; i < n; i += THREADS) y[i] = (x[i] - minus) * factor;
}

// y = x / sqrt(mean(x^2) + eps)
KERNEL(rms_norm, Args, THREADS) {
    if (blockIdx.x >= args.x.n_rows(run)) return;
    const Row row = row_of(args.x, blockIdx.x, run);
    const float* x = (const float*)args.x.at(row.i1, row.i2, row.i3);
    const int n = args.x.ne[0].at(run);
    const float factor = 1.0f / sqrtf(sum_of_squares(x, n, 0.0f) / n + args.eps);
    shift_and_scale(x, (float*)args.y.at(row.i1, row.i2, row.i3), n, 0.0f, factor);
}

// y = (x - mean) / sqrt(variance + eps)
KERNEL(norm, Args, THREADS) {
    if (blockIdx.x >= args.x.n_rows(run)) return;
    const Row row = row_of(args.x, blockIdx.x, run);
    const float* x = (const float*)args.x.at(row.i1, row.i2, row.i3);
    const int n = args.x.ne[0].at(run);
    const float mean = sum_of(x, n) / n;
    const float factor = 1.0f / sqrtf(sum_of_squares(x, n, mean) / n + args.eps);
    shift_and_scale(x, (float*)args.y.at(row.i1, row.i2, row.i3), n, mean, factor);
}

// y = x / max(sqrt(sum(x^2)), eps)
KERNEL(l2_norm, Args, THREADS) {
    if (blockIdx.x >= args.x.n_rows(run)) return;
    const Row row = row_of(args.x, blockIdx.x, run);
    const float* x = (const float*)args.x.at(row.i1, row.i2, row.i3);
    const int n = args.x.ne[0].at(run);
    const float factor = 1.0f / fmaxf(args.eps, sqrtf(sum_of_squares(x, n, 0.0f)));
    shift_and_scale(x, (float*)args.y.at(row.i1, row.i2, row.i3), n, 0.0f, factor);
}
