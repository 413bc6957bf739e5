// Products with weights of type WEIGHT: mul_mat, mul_mat_id, with a bias or a gated unit; out_prod.
#include "products_few.cuh"
#include "products_floats.cuh"
#include "products_int8.cuh"
#include "products_many.cuh"
#include "products_one.cuh"

template <class W>
struct Kind {
    typedef Int8<W> Product;
};
template <>
struct Kind<f32> {
    typedef FloatProduct<f32> Product;
};
template <>
struct Kind<f16> {
    typedef FloatProduct<f16> Product;
};
template <>
struct Kind<bf16> {
    typedef FloatProduct<bf16> Product;
};

KERNEL_AHEAD(multiply_one_column, ProductArgs, PRODUCT_THREADS, 3) {
    multiply_one<Kind<WEIGHT>::Product>(args, run);
}

KERNEL_AHEAD(multiply_few_columns, ProductArgs, PRODUCT_THREADS, 1) {
    multiply_few<Kind<WEIGHT>::Product>(args, run);
}

KERNEL(multiply_many_columns, ProductArgs, PRODUCT_THREADS) {
    multiply_many<Kind<WEIGHT>::Product>(args, run);
}

// --- out_prod ---------------------------------------------------------------------------------------

constexpr int OUTER_THREADS = 128;
constexpr int OUTER_COLUMNS = 8;

struct OuterArgs {
    Tensor y;
    Tensor a;
    Tensor b;
    int n_row_blocks;
    int n_column_blocks;
};

// y[m, n] = sum_k a[m, k] b[n, k], from the first k to the last: a thread has an m and 8 n.
//   grid  x: blocks of 128 m, times blocks of 8 n, times matrices
KERNEL(outer_product, OuterArgs, OUTER_THREADS) {
    const Tensor &y = args.y, &a = args.a, &b = args.b;
    const int m = blockIdx.x % args.n_row_blocks * OUTER_THREADS + threadIdx.x;
    const int rest = blockIdx.x / args.n_row_blocks;
    const int first = rest % args.n_column_blocks * OUTER_COLUMNS;
    const int index = rest / args.n_column_blocks;
    const int n2 = y.ne[2].at(run), n3 = y.ne[3].at(run);
    if (m >= y.ne[0].at(run) || index >= n2 * n3) return;
    const int i3 = index / n2, i2 = index - i3 * n2;
    const int r2 = n2 / a.ne[2].at(run), r3 = n3 / a.ne[3].at(run);
    const int n = min((int)OUTER_COLUMNS, y.ne[1].at(run) - first), n_k = a.ne[1].at(run);
    float sums[OUTER_COLUMNS] = {};
    for (int k = 0; k < n_k; ++k) {
        const float v = WEIGHT::load(a.at(k, i2 / r2, i3 / r3), m);
        const char* of_b = b.at(first, k, i2, i3);
        for (int i = 0; i < OUTER_COLUMNS; ++i) {
            if (i < n) sums[i] = fmaf(v, *(const float*)(of_b + i * b.nb[0]), sums[i]);
        }
    }
    for (int i = 0; i < OUTER_COLUMNS; ++i) {
        if (i < n) *(float*)y.at(m, first + i, i2, i3) = sums[i];
    }
}
