// Windows as rows, and back: im2col of signals, images and volumes, im2col_back, col2im_1d.
// Bandwidth-bound.
#include "convolution.cuh"

constexpr int THREADS = 256;
constexpr int WINDOWS = 8;  // neighbours in a line that a thread takes an element of

// Signals are given as images of one line, here and below (im2col.py).
struct Args {
    Tensor y;  // [elements of a window, OW, OH, OD N]
    Tensor x;
    Tensor kernel;  // only its shape counts
    Steps steps;
    int n_channels;
    int y_type;
    int x_type;
};

struct BackArgs {
    Tensor y;     // [W, H, C, N]
    Tensor grad;  // [elements of a window, OW, OH, N]
    Tensor kernel;
    Steps steps;
};

struct SignalArgs {
    Tensor y;
    Tensor x;
    int s0;
    int p0;
    int oc;
    int type;
};

// y[((c KD + kd) KH + kh) KW + kw, ow, oh, od, n]
//     = x[ow s0 + kw d0 - p0, oh s1 + kh d1 - p1, od s2 + kd d2 - p2, c, n]
// Threads of neighbours take neighbours of a window's elements: what they write is contiguous.
KERNEL(im2col, Args, THREADS) {
    const Volumes x = volumes_of(args.x, args.n_channels, run);
    const Steps& steps = args.steps;
    const int n_elements = args.y.ne[0].at(run), n_wide = args.y.ne[1].at(run);
    const int n_high = args.y.ne[2].at(run), n_deep = args.y.ne[3].at(run) / x.N;
    const int per_line = (n_wide + WINDOWS - 1) / WINDOWS;

    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    const Quotient part = divided(i, n_elements);
    const Quotient line = divided(part.whole, per_line);
    const Quotient plane = divided(line.whole, n_high);
    const Quotient volume = divided(plane.whole, n_deep);
    if (volume.whole >= x.N) return;

    const int kernel_w = args.kernel.ne[0].at(run), kernel_h = args.kernel.ne[1].at(run);
    const int kernel_d = args.n_channels == 0 ? 1 : args.kernel.ne[2].at(run);
    const Quotient kernel_line = divided(part.rest, kernel_w);
    const Quotient kernel_plane = divided(kernel_line.whole, kernel_h);
    const Quotient channel = divided(kernel_plane.whole, kernel_d);

    const int i1 = (int)plane.rest * steps.s1 + (int)kernel_plane.rest * steps.d1 - steps.p1;
    const int i2 = (int)volume.rest * steps.s2 + (int)channel.rest * steps.d2 - steps.p2;
    const bool there = is_inside(i1, x.H) && is_inside(i2, x.D);
    const char* from = x.channel((int)channel.whole, (int)volume.whole);
    from += i2 * x.to_plane + i1 * x.to_line;
    const int first = (int)line.rest * WINDOWS;
    int i0 = first * steps.s0 + (int)kernel_line.rest * steps.d0 - steps.p0;
    char* to = args.y.at(part.rest, first, plane.rest, plane.whole);
    for (int ow = first; ow < min(first + WINDOWS, n_wide); ++ow) {
        const bool inside = there && is_inside(i0, x.W);
        store_one(args.y_type, to, inside ? load_one(args.x_type, from + i0 * args.x.nb[0]) : 0.0f);
        i0 += steps.s0;
        to += args.y.nb[1];
    }
}

// The window whose element k, of those `dilation` apart, is i; -1 if there is none of n.
__device__ inline int window_with(int i, int k, int step, int padding, int dilation, int n) {
    const int first = i + padding - k * dilation;
    if (first < 0 || first % step != 0) return -1;
    return first / step < n ? first / step : -1;
}

// A thread for each element: the sum over the places of the kernel that reached it, in order.
KERNEL(im2col_back, BackArgs, THREADS) {
    const Tensor &y = args.y, &grad = args.grad;
    const Steps& steps = args.steps;
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= y.n_elements(run)) return;
    const Quotient row = divided(i, y.ne[0].at(run));
    const Row at = fast_row_of(y, row.whole, run);
    const int n_wide = grad.ne[1].at(run), n_high = grad.ne[2].at(run);
    const int kernel_w = args.kernel.ne[0].at(run), kernel_h = args.kernel.ne[1].at(run);
    float total = 0.0f;
    for (int kh = 0; kh < kernel_h; ++kh) {
        const int oh = window_with(at.i1, kh, steps.s1, steps.p1, steps.d1, n_high);
        if (oh < 0) continue;
        for (int kw = 0; kw < kernel_w; ++kw) {
            const int ow = window_with((int)row.rest, kw, steps.s0, steps.p0, steps.d0, n_wide);
            if (ow < 0) continue;
            const i64_t element = ((i64_t)at.i2 * kernel_h + kh) * kernel_w + kw;
            total += f32::load(grad.at(ow, oh, at.i3), element);
        }
    }
    f32::store(y.at(at.i1, at.i2, at.i3), row.rest, total);
}

// y[t, c] = sum of x[c K + k, l] over all l and k with l s0 + k = t + p0: l in order.
KERNEL(col2im_1d, SignalArgs, THREADS) {
    const Tensor &x = args.x, &y = args.y;
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    const int length = y.ne[0].at(run);
    if (i >= (i64_t)length * y.ne[1].at(run)) return;
    const Quotient channel = divided(i, length);
    const int size = x.ne[0].at(run) / args.oc;
    const int t = (int)channel.rest + args.p0;
    const int first = t < size ? 0 : (t - size) / args.s0 + 1;
    const int end = min(t / args.s0 + 1, x.ne[1].at(run));
    float total = 0.0f;
    for (int l = first; l < end; ++l) {
        const i64_t element = channel.whole * size + t - l * args.s0;
        total += load_one(args.type, x.at(element, l, 0, 0));
    }
    store_one(args.type, y.at(channel.rest, channel.whole, 0, 0), total);
}
