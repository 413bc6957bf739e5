// Images of another size, and embeddings of time steps: a thread for each element of y.
//   x, y f32
//
// Positions in x are computed by f32 operations, each rounded, as the op defines them: which elements
// are neighbours depends on them.
#include "elementwise.cuh"

constexpr int THREADS = 256;

// --- images ---------------------------------------------------------------------------------------

enum Mode { NEAREST, BILINEAR, BICUBIC, ANTIALIAS };

// Elements of y for one of x.
__device__ static float scale_of(int n_y, int n_x, bool aligned) {
    if (aligned && n_y > 1 && n_x > 1) return (float)(n_y - 1) / (float)(n_x - 1);
    return (float)n_y / (float)n_x;
}

__device__ static int nearest(int i, float scale, int n_x) {
    return min((int)((float)i / scale), n_x - 1);
}

// Keys' kernel with a = -0.75, in factors that keep small weights exact: of the two elements next to a
// position, by the distance t to it, and of the two beyond, by the distance 1 + t.
constexpr float KEYS = -0.75f;
__device__ static float cubic(float t) { return (1.0f - t) * (1.0f + t - (KEYS + 2.0f) * t * t); }
__device__ static float cubic_beyond(float t) { return KEYS * t * (1.0f - t) * (1.0f - t); }

// The elements of x along a dimension that count for one of y, and their weights.
struct Taps {
    int mode;
    int n_x;
    int first;
    int n;
    float rest;     // of the position, after the element before it
    float centre;   // of the triangle
    float support;  // its half width
    float half;
    float total;    // of the triangle's weights

    __device__ Taps(int mode, int i, int n_y, int n_x, bool aligned) : mode(mode), n_x(n_x) {
        const float scale = scale_of(n_y, n_x, aligned);
        half = aligned ? 0.0f : 0.5f;
        centre = ((float)i + half) / scale;
        rest = support = 0.0f;
        total = 1.0f;
        if (mode == NEAREST) {
            first = nearest(i, scale, n_x);
            n = 1;
        } else if (mode == ANTIALIAS) {
            support = fmaxf(1.0f, 1.0f / scale);
            first = max((int)(centre - support + half), 0);
            n = min((int)(centre + support + half), n_x) - first;
            float sum = 0.0f;
            for (int k = 0; k < n; ++k) sum += weight(k);
            if (sum > 0.0f) total = sum;
        } else {
            const float position = centre - half;
            const float before = floorf(position);
            rest = position - before;
            first = (int)before - (mode == BICUBIC ? 1 : 0);
            n = mode == BICUBIC ? 4 : 2;
        }
    }

    __device__ float weight(int k) const {
        switch (mode) {
            case NEAREST: return 1.0f;
            case BILINEAR: return k == 0 ? 1.0f - rest : rest;
            case BICUBIC:
                if (k == 0 || k == 3) return cubic_beyond(k == 0 ? rest : 1.0f - rest);
                return cubic(k == 1 ? rest : 1.0f - rest);
        }
        const float distance = ((float)(first + k) - centre + half) / support;
        return fmaxf(1.0f - fabsf(distance), 0.0f) / total;
    }

    // Beyond an edge is the element at the edge.
    __device__ int element(int k) const { return min(max(first + k, 0), n_x - 1); }
};

struct UpscaleArgs {
    Tensor y;
    Tensor x;
    int mode;
    int aligned;
};

// y = the sum over rows of w1 * (the sum over columns of w0 * x)
KERNEL(upscale, UpscaleArgs, THREADS) {
    const Tensor &x = args.x, &y = args.y;
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= y.n_elements(run)) return;
    const int n0 = y.ne[0].at(run), n1 = y.ne[1].at(run);
    const Quotient column = divided(i, n0);
    const Row row = fast_row_of(y, column.whole, run);
    const Taps columns(args.mode, (int)column.rest, n0, x.ne[0].at(run), args.aligned);
    const Taps rows(args.mode, row.i1, n1, x.ne[1].at(run), args.aligned);
    const int x_n2 = x.ne[2].at(run), x_n3 = x.ne[3].at(run);
    const int i2 = nearest(row.i2, scale_of(y.ne[2].at(run), x_n2, false), x_n2);
    const int i3 = nearest(row.i3, scale_of(y.ne[3].at(run), x_n3, false), x_n3);
    float total = 0.0f;
    for (int r = 0; r < rows.n; ++r) {
        const char* x_row = x.at(rows.element(r), i2, i3);
        float across = 0.0f;
        for (int c = 0; c < columns.n; ++c) {
            const float weight = columns.weight(c);
            if (weight == 0.0f) continue;  // an infinity does not count there
            const float v = f32::load(x_row + columns.element(c) * x.nb[0], 0);
            across = args.mode == NEAREST ? v : fmaf(v, weight, across);
        }
        const float weight = rows.weight(r);
        if (weight != 0.0f) total = args.mode == NEAREST ? across : fmaf(across, weight, total);
    }
    f32::store(y.at(column.rest, row.i1, row.i2, row.i3), 0, total);
}

// --- time steps -----------------------------------------------------------------------------------

struct StepArgs {
    Tensor y;
    Tensor x;
    double log_period;
};

// y[j, i] = cos(x[i] f_j), y[h + j, i] = sin(x[i] f_j) with f_j = period^(-j / h) and h = dim / 2
KERNEL(timestep_embedding, StepArgs, THREADS) {
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= args.y.n_elements(run)) return;
    const int dim = args.y.ne[0].at(run), half = dim / 2;
    const Quotient step = divided(i, dim);
    const int j = (int)step.rest;
    float v = 0.0f;  // the last one of an odd dim
    if (j < 2 * half) {
        const double exponent = args.log_period * (j < half ? j : j - half) / half;
        const float angle = f32::load(args.x.data, step.whole) * expf((float)-exponent);
        v = j < half ? cosf(angle) : sinf(angle);
    }
    f32::store(args.y.at(j, step.whole, 0, 0), 0, v);
}
