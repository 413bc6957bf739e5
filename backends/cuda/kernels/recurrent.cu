// The short causal convolution of recurrent layers. Bandwidth-bound.
//
//   y [C, T, S] or [C, T]; kernel [K, C]       grid  see the kernels; neighbours have neighbouring channels
//
// Sums are in the order of k. Of steps that follow one another, and of a kernel's elements, the caches
// serve all but the first.
#include "elementwise.cuh"

constexpr int THREADS = 128;
constexpr int STEPS = 8;  // of a channel that a thread computes: x has them next to each other

struct Args {
    Tensor y;
    Tensor x;  // [K - 1 + T, C, S]
    Tensor kernel;
};

struct ListedArgs {
    Tensor y;
    Tensor x;  // [C, N]
    Tensor kernel;
    Tensor taps;  // [K, T]
};

// y[c, t, s] = sum_k x[t + k, c, s] * kernel[k, c].  grid: a thread for STEPS steps of a channel
KERNEL(ssm_conv, Args, THREADS) {
    const Tensor &x = args.x, &y = args.y, &kernel = args.kernel;
    const int n_channels = y.ne[0].at(run), n_steps = y.ne[1].at(run), n_taps = kernel.ne[0].at(run);
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    const Quotient channel = divided(i, n_channels);
    const Quotient part = divided(channel.whole, (n_steps + STEPS - 1) / STEPS);
    const i64_t c = channel.rest, s = part.whole;
    if (s >= y.ne[2].at(run)) return;
    const float* steps = (const float*)x.at(c, s, 0);
    const float* weights = (const float*)kernel.at(c, 0, 0);
    const int first = (int)part.rest * STEPS;
    for (int t = first; t < min(first + STEPS, n_steps); ++t) {
        float sum = 0.0f;
        for (int k = 0; k < n_taps; ++k) sum = fmaf(steps[t + k], weights[k], sum);
        f32::store(y.at(t, s, 0), c, sum);
    }
}

// y[c, t] = sum_k x[c, taps[k, t]] * kernel[k, c].  grid: a thread for each element
KERNEL(ssm_conv_listed, ListedArgs, THREADS) {
    const Tensor &x = args.x, &y = args.y, &kernel = args.kernel;
    const int n_channels = y.ne[0].at(run), n_taps = kernel.ne[0].at(run), n_columns = x.ne[1].at(run);
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    const Quotient token = divided(i, n_channels);
    const i64_t c = token.rest, t = token.whole;
    if (t >= y.ne[1].at(run)) return;
    const int* taps = (const int*)args.taps.at(t, 0, 0);
    const float* weights = (const float*)kernel.at(c, 0, 0);
    float sum = 0.0f;
    for (int k = 0; k < n_taps; ++k) {
        const int column = taps[k];
        if (column < 0 || column >= n_columns) {
            fail(run, column);
            return;
        }
        sum = fmaf(f32::load(x.at(column, 0, 0), c), weights[k], sum);
    }
    f32::store(y.at(t, 0, 0), c, sum);
}
