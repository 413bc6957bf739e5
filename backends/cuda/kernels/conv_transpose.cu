// Transposed convolutions of signals and images, as sums over the input: no two threads add to one
// element.
//
//   grid  a thread for each element of a plane of y and PART channels, which share what it reads of x
#include "convolution.cuh"

constexpr int THREADS = 128;
constexpr int PART = 4;

// Signals are given as images of one line.
struct Args {
    Tensor y;       // [OW, OH, OC, N]
    Tensor kernel;  // [KW, KH, OC, IC]
    Tensor x;       // [W, H, IC, N]
    int stride;
    int kernel_type;
};

// Elements of the kernel that reach element i of y from one of n: `first`, and each `stride` after it
// up to `end` - 1. That of the kernel's element k is (i - k) / stride.
struct Reach {
    int first;
    int end;
};

__device__ inline Reach reach_of(int i, int size, int stride, int n) {
    const int beyond = i - (n - 1) * stride;  // elements before it need more of x than there is
    int first = i % stride;
    if (beyond > first) first += (beyond - first + stride - 1) / stride * stride;
    return {first, min(size, i + 1)};
}

// y[ow, oh, oc, n] = sum_ic of kernel[kw, kh, oc, ic] * x[w, h, ic, n] over all kw, kh, w, h with
// w stride + kw = ow and h stride + kh = oh: channels, lines and columns of the kernel in order.
KERNEL(conv_transpose, Args, THREADS) {
    const Tensor &x = args.x, &y = args.y, &kernel = args.kernel;
    const int stride = args.stride, n_channels = y.ne[2].at(run);
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    const Quotient line = divided(i, y.ne[0].at(run));
    const Quotient plane = divided(line.whole, y.ne[1].at(run));
    const Quotient image = divided(plane.whole, (n_channels + PART - 1) / PART);
    const i64_t n = image.whole;
    if (n >= y.ne[3].at(run)) return;
    const int ow = (int)line.rest, oh = (int)plane.rest, first = (int)image.rest * PART;
    const int here = min(PART, n_channels - first);

    const Reach columns = reach_of(ow, kernel.ne[0].at(run), stride, x.ne[0].at(run));
    const Reach rows = reach_of(oh, kernel.ne[1].at(run), stride, x.ne[1].at(run));
    const int in_channels = x.ne[2].at(run);
    float sums[PART] = {};
    for (int ic = 0; ic < in_channels; ++ic) {
        for (int kh = rows.first; kh < rows.end; kh += stride) {
            const char* from = x.at((oh - kh) / stride, ic, n);
            const char* weights = kernel.at(kh, first, ic);
            for (int kw = columns.first; kw < columns.end; kw += stride) {
                const float v = f32::load(from, (ow - kw) / stride);
                const char* weight = weights + kw * kernel.nb[0];
#pragma unroll
                for (int c = 0; c < PART; ++c) {
                    if (c >= here) break;
                    const float w = load_one(args.kernel_type, weight + c * kernel.nb[2]);
                    sums[c] = fmaf(w, v, sums[c]);
                }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < PART; ++c) {
        if (c < here) f32::store(y.at(oh, first + c, n), ow, sums[c]);
    }
}
