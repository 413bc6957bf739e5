// Systems of equations of lower triangular matrices, by forward substitution.
//
//   grid  a thread for each column of b, which it solves row by row: neighbours read neighbouring
//         columns, and the same elements of a
#include "elementwise.cuh"

constexpr int THREADS = 64;

struct Args {
    Tensor y;
    Tensor a;  // [n, n, ...]
    Tensor b;  // [k, n, ...]
};

// y[j, i] = (b[j, i] - sum_(t < i) a[t, i] y[j, t]) / a[i, i]: sums in the order of t
KERNEL(solve_tri, Args, THREADS) {
    const Tensor &y = args.y, &a = args.a, &b = args.b;
    const int n = a.ne[0].at(run), n_columns = y.ne[0].at(run);
    const i64_t number = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    const Quotient matrix = divided(number, n_columns);
    const Quotient at = divided(matrix.whole, y.ne[2].at(run));
    const i64_t j = matrix.rest, i2 = at.rest, i3 = at.whole;
    if (i3 >= y.ne[3].at(run)) return;
    const char* column = y.at(j, 0, i2, i3);
    for (int i = 0; i < n; ++i) {
        const float* row = (const float*)a.at(i, i2, i3);
        float known = 0.0f;
        for (int t = 0; t < i; ++t) known = fmaf(row[t], f32::load(column + t * y.nb[1], 0), known);
        const float rest = f32::load(b.at(i, i2, i3), j) - known;
        f32::store(y.at(i, i2, i3), j, rest / row[i]);
    }
}
