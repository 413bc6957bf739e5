// Pooling over windows, and its gradient. A thread for each element of y. Bandwidth-bound: neighbours
// find what their windows share in the caches.
#include "elementwise.cuh"

constexpr int THREADS = 256;
constexpr int LARGEST = 0;  // ggml's number; else the average

struct LineArgs {
    Tensor y;
    Tensor x;
    int type;  // of x
    int op;
    int k0;
    int s0;
    int p0;
};

struct PlaneArgs {
    Tensor y;
    Tensor x;
    int op;
    int k0;
    int k1;
    int s0;
    int s1;
    int p0;
    int p1;
};

struct BackArgs {
    Tensor y;
    Tensor grad;
    Tensor x;
    int op;
    int k0;
    int k1;
    int s0;
    int s1;
    int p0;
    int p1;
};

// An element of y by its number; `i0` is -1 past the last one.
struct Element {
    int i0;
    Row row;
};

__device__ inline Element element_of(const Tensor& y, const Run& run) {
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= y.n_elements(run)) return {-1, {0, 0, 0}};
    const Quotient row = divided(i, y.ne[0].at(run));
    return {(int)row.rest, fast_row_of(y, row.whole, run)};
}

// The larger one; a NaN, once it is there, stays.
__device__ inline float larger(float largest, float v) {
    return largest != largest || v <= largest ? largest : v;
}

// y[u, ...] over x[u s0 - p0 + i, ...], i < k0. An average is over the elements of x in the window.
KERNEL(pool_1d, LineArgs, THREADS) {
    const Tensor &x = args.x, &y = args.y;
    const Element at = element_of(y, run);
    if (at.i0 < 0) return;
    const int size = size_of(args.type);
    const char* row = x.at(at.row.i1, at.row.i2, at.row.i3);
    const int first = at.i0 * args.s0 - args.p0;
    const int begin = max(first, 0), end = min(first + args.k0, x.ne[0].at(run));
    float largest = minus_infinity(), total = 0.0f;
    for (int i = begin; i < end; ++i) {
        const float v = load_one(args.type, row + (i64_t)i * size);
        largest = larger(largest, v);
        total += v;
    }
    const float found = args.op == LARGEST ? largest : total / (float)(end - begin);
    f32::store(y.at(at.row.i1, at.row.i2, at.row.i3), at.i0, found);
}

// The elements of x in a window: columns and rows `begin` to `end` - 1.
struct Window {
    int begin0, end0;
    int begin1, end1;
};

template <class Args>
__device__ inline Window window_at(const Args& args, int u, int v, int n0, int n1) {
    const int column = u * args.s0 - args.p0, row = v * args.s1 - args.p1;
    return {max(column, 0), min(column + args.k0, n0), max(row, 0), min(row + args.k1, n1)};
}

// y[u, v, ...] over x[u s0 - p0 + i, v s1 - p1 + j, ...], i < k0, j < k1. In an average, padding counts
// as 0.
KERNEL(pool_2d, PlaneArgs, THREADS) {
    const Tensor &x = args.x, &y = args.y;
    const Element at = element_of(y, run);
    if (at.i0 < 0) return;
    const Window window = window_at(args, at.i0, at.row.i1, x.ne[0].at(run), x.ne[1].at(run));
    float largest = minus_infinity(), total = 0.0f;
    for (int j = window.begin1; j < window.end1; ++j) {
        const char* row = x.at(j, at.row.i2, at.row.i3);
        for (int i = window.begin0; i < window.end0; ++i) {
            const float v = f32::load(row, i);
            largest = larger(largest, v);
            total += v;
        }
    }
    const float found = args.op == LARGEST ? largest : total / ((float)args.k0 * (float)args.k1);
    f32::store(y.at(at.row.i1, at.row.i2, at.row.i3), at.i0, found);
}

// Whether an element of x is the first largest one of a window, or its first NaN.
__device__ inline bool is_first_largest(const Tensor& x, Window window, const Element& at) {
    float largest = minus_infinity();
    int column = -1, row = -1;
    for (int j = window.begin1; j < window.end1; ++j) {
        const char* line = x.at(j, at.row.i2, at.row.i3);
        for (int i = window.begin0; i < window.end0; ++i) {
            const float v = f32::load(line, i);
            if (largest == largest && (column < 0 || v > largest || v != v)) {
                largest = v;
                column = i;
                row = j;
            }
        }
    }
    return column == at.i0 && row == at.row.i1;
}

// The windows, `begin` to `end` - 1, that have element i of n; of n_windows.
struct Windows {
    int begin;
    int end;
};

__device__ inline Windows windows_with(int i, int size, int step, int padding, int n_windows) {
    const int last = i + padding, first = last - size + 1;
    return {first > 0 ? (first + step - 1) / step : 0, min(last / step + 1, n_windows)};
}

// The gradients of the windows that an element is in, added in order: those of which it is the first
// largest, or its share of each.
KERNEL(pool_2d_back, BackArgs, THREADS) {
    const Tensor &x = args.x, &y = args.y, &grad = args.grad;
    const Element at = element_of(y, run);
    if (at.i0 < 0) return;
    const Windows across = windows_with(at.i0, args.k0, args.s0, args.p0, grad.ne[0].at(run));
    const Windows down = windows_with(at.row.i1, args.k1, args.s1, args.p1, grad.ne[1].at(run));
    const int n0 = x.ne[0].at(run), n1 = x.ne[1].at(run);
    const float n_sharing = (float)args.k0 * (float)args.k1;
    float total = 0.0f;
    for (int v = down.begin; v < down.end; ++v) {
        const char* row = grad.at(v, at.row.i2, at.row.i3);
        for (int u = across.begin; u < across.end; ++u) {
            const float given = f32::load(row, u);
            if (args.op != LARGEST) {
                total += given / n_sharing;
            } else if (is_first_largest(x, window_at(args, u, v, n0, n1), at)) {
                total += given;
            }
        }
    }
    f32::store(y.at(at.row.i1, at.row.i2, at.row.i3), at.i0, total);
}
