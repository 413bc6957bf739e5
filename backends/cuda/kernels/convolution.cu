// Direct convolutions of images and volumes, and of each channel by itself.
//
//   grid  conv: a block for each tile of SIDE channels by SIDE pixels of y
//         conv_2d_dw: a thread for each element of y
//   conv moves x once for every SIDE channels, and has 4 multiply-adds for each number that it reads
//   from shared memory: bound by arithmetic
#include "convolution.cuh"

constexpr int DEPTH = 16;  // elements of windows in shared memory at a time
constexpr int PART = 4;    // a thread computes PART channels by PART pixels
constexpr int PAD = 4;     // so that the stores of weights, which are transposed, go to many banks
constexpr int DW_THREADS = 256;

struct Args {
    Tensor y;       // images or volumes of OC channels
    Tensor kernel;  // OC images or volumes of IC channels, contiguous
    Tensor x;       // of IC channels
    Steps steps;
    int in_channels;  // of a volume; 0 for images
    int out_channels;
    int kernel_type;
};

// An element of a window: its place in the window, and its bytes from the window's first.
struct Place {
    i64_t offset;
    int i0, i1, i2;
};

__device__ inline Place place_of(i64_t k, const Volumes& kernel, const Volumes& x, const Steps& steps) {
    const Quotient line = divided(k, kernel.W);
    const Quotient plane = divided(line.whole, kernel.H);
    const Quotient channel = divided(plane.whole, kernel.D);
    const int i0 = (int)line.rest * steps.d0;
    const int i1 = (int)plane.rest * steps.d1;
    const int i2 = (int)channel.rest * steps.d2;
    const i64_t offset = channel.whole * x.to_channel + i2 * x.to_plane + i1 * x.to_line + 4ll * i0;
    return {offset, i0, i1, i2};
}

// A pixel of y, with all channels.
struct Pixel {
    int ow, oh, od, n;
};

__device__ inline Pixel pixel_of(i64_t pixel, const Volumes& y) {
    const Quotient line = divided(pixel, y.W);
    const Quotient plane = divided(line.whole, y.H);
    const Quotient volume = divided(plane.whole, y.D);
    return {(int)line.rest, (int)plane.rest, (int)volume.rest, (int)volume.whole};
}

// sums += weights of PART channels * windows of PART pixels, element by element of DEPTH.
template <int SIDE>
__device__ inline void add_products(
    const float (&weights)[DEPTH][SIDE + PAD], const float (&windows)[DEPTH][SIDE], int channel, int pixel,
    float (&sums)[PART][PART]
) {
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
        const float4 w = *(const float4*)&weights[k][channel];
        const float4 v = *(const float4*)&windows[k][pixel];
        const float of_channels[PART] = {w.x, w.y, w.z, w.w};
        const float of_pixels[PART] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int c = 0; c < PART; ++c) {
#pragma unroll
            for (int j = 0; j < PART; ++j) {
                sums[c][j] = fmaf(of_channels[c], of_pixels[j], sums[c][j]);
            }
        }
    }
}

// Those of channels and pixels that there are.
__device__ inline void store_part(
    const Volumes& y, int first_channel, i64_t first_pixel, i64_t n_pixels, const float (&sums)[PART][PART]
) {
#pragma unroll
    for (int j = 0; j < PART; ++j) {
        if (first_pixel + j >= n_pixels) break;
        const Pixel at = pixel_of(first_pixel + j, y);
#pragma unroll
        for (int c = 0; c < PART; ++c) {
            if (first_channel + c >= y.C) break;
            char* line = y.channel(first_channel + c, at.n) + at.od * y.to_plane + at.oh * y.to_line;
            f32::store(line, at.ow, sums[c][j]);
        }
    }
}

// The product of the kernels, as a matrix [K, OC], with the windows of all pixels, [K, pixels], which are
// read from x. Each element is summed in the order of k, by one thread, whatever the tile.
template <int SIDE>
__device__ void convolution(const Args& args, const Run& run) {
    constexpr int THREADS = (SIDE / PART) * (SIDE / PART);
    constexpr int LOADS = SIDE * DEPTH / THREADS;  // of a thread, from each matrix
    __shared__ __align__(16) float weights[DEPTH][SIDE + PAD];
    __shared__ __align__(16) float windows[DEPTH][SIDE];
    __shared__ Place places[DEPTH];

    const Volumes x = volumes_of(args.x, args.in_channels, run);
    const Volumes y = volumes_of(args.y, args.out_channels, run);
    const Volumes kernel = volumes_of(args.kernel, args.in_channels, run);
    const Steps& steps = args.steps;
    const int tid = threadIdx.x;
    const Quotient tile = divided(blockIdx.x, (y.C + SIDE - 1) / SIDE);
    const int first_channel = (int)tile.rest * SIDE;
    const i64_t first_pixel = tile.whole * SIDE;
    const i64_t n_pixels = (i64_t)y.W * y.H * y.D * y.N;
    if (first_pixel >= n_pixels) return;

    // What this thread loads: of windows an element of every THREADS / SIDE, always of one pixel.
    const i64_t loaded = first_pixel + tid % SIDE;
    const Pixel pixel = pixel_of(min(loaded, n_pixels - 1), y);
    const int left = pixel.ow * steps.s0 - steps.p0;
    const int top = pixel.oh * steps.s1 - steps.p1;
    const int front = pixel.od * steps.s2 - steps.p2;
    const char* window = x.channel(0, pixel.n) + front * x.to_plane + top * x.to_line + 4ll * left;
    const int n = kernel.W * kernel.H * kernel.D * kernel.C;
    const int weight_bytes = size_of(args.kernel_type);
    float next_weights[LOADS], next_windows[LOADS];
    float sums[PART][PART] = {};

    const auto set_places = [&](int k0) {
        if (tid < DEPTH) places[tid] = place_of(min(k0 + tid, n - 1), kernel, x, steps);
    };
    const auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int k = k0 + tid % DEPTH;
            const int c = first_channel + tid / DEPTH + i * (THREADS / DEPTH);
            const char* at = kernel.channel(0, c) + (i64_t)k * weight_bytes;
            next_weights[i] = k < n && c < y.C ? load_one(args.kernel_type, at) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int k = tid / SIDE + i * (THREADS / SIDE);
            const Place& place = places[k];
            const bool there = k0 + k < n && loaded < n_pixels && is_inside(left + place.i0, x.W)
                && is_inside(top + place.i1, x.H) && is_inside(front + place.i2, x.D);
            next_windows[i] = there ? *(const float*)(window + place.offset) : 0.0f;
        }
    };

    set_places(0);
    __syncthreads();
    fetch(0);
    const int channel_part = tid / (SIDE / PART) * PART, pixel_part = tid % (SIDE / PART) * PART;
    for (int k0 = 0; k0 < n; k0 += DEPTH) {
        __syncthreads();  // all have read the tiles before, and the places
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            weights[tid % DEPTH][tid / DEPTH + i * (THREADS / DEPTH)] = next_weights[i];
            windows[tid / SIDE + i * (THREADS / SIDE)][tid % SIDE] = next_windows[i];
        }
        set_places(k0 + DEPTH);
        __syncthreads();
        if (k0 + DEPTH < n) fetch(k0 + DEPTH);  // arrives while the products are computed
        add_products<SIDE>(weights, windows, channel_part, pixel_part, sums);
    }
    store_part(y, first_channel + channel_part, first_pixel + pixel_part, n_pixels, sums);
}

KERNEL(conv_64, Args, 256) { convolution<64>(args, run); }

// For results of few elements: more blocks.
KERNEL(conv_32, Args, 64) { convolution<32>(args, run); }

struct DwArgs {
    Tensor y;
    Tensor kernel;  // [KW, KH, 1, C]
    Tensor x;
    Steps steps;
    int by_pixels;  // channels of a pixel are neighbours in memory, and not pixels of a line
    int kernel_type;
};

// y[ow, oh, c, n] = sum_(kh, kw) kernel[kw, kh, 0, c] * x[ow s0 + kw d0 - p0, oh s1 + kh d1 - p1, c, n]
KERNEL(conv_2d_dw, DwArgs, DW_THREADS) {
    const Tensor &x = args.x, &y = args.y, &kernel = args.kernel;
    const Steps& steps = args.steps;
    const i64_t i = (i64_t)blockIdx.x * DW_THREADS + threadIdx.x;
    if (i >= y.n_elements(run)) return;
    const int n_wide = y.ne[0].at(run), n_high = y.ne[1].at(run), n_channels = y.ne[2].at(run);
    // Neighbouring threads take neighbours in memory.
    const Quotient first = divided(i, args.by_pixels ? n_channels : n_wide);
    const Quotient second = divided(first.whole, args.by_pixels ? n_wide : n_high);
    const Quotient third = divided(second.whole, args.by_pixels ? n_high : n_channels);
    const i64_t c = args.by_pixels ? first.rest : third.rest;
    const int ow = (int)(args.by_pixels ? second.rest : first.rest);
    const int oh = (int)(args.by_pixels ? third.rest : second.rest);
    const i64_t n = third.whole;

    const int left = ow * steps.s0 - steps.p0, top = oh * steps.s1 - steps.p1;
    const int in_wide = x.ne[0].at(run), in_high = x.ne[1].at(run);
    const int kernel_w = kernel.ne[0].at(run), kernel_h = kernel.ne[1].at(run);
    float sum = 0.0f;
    for (int kh = 0; kh < kernel_h; ++kh) {
        const int i1 = top + kh * steps.d1;
        if (!is_inside(i1, in_high)) continue;
        for (int kw = 0; kw < kernel_w; ++kw) {
            const int i0 = left + kw * steps.d0;
            if (!is_inside(i0, in_wide)) continue;
            const float w = load_one(args.kernel_type, kernel.at(kw, kh, 0, c));
            sum = fmaf(w, f32::load(x.at(i0, i1, c, n), 0), sum);
        }
    }
    f32::store(y.at(ow, oh, c, n), 0, sum);
}
