// What the kernels of products share: arguments, the order of sums, rows of x and of y.
//
// One order serves every kernel and every number of columns, so that a row of y has the same bits
// alone, among others, in mul_mat_id and in fused steps. The chunks of K (a number of elements that the
// type of weights has, see products_int8.cuh and products_floats.cuh) are cut into SLICES runs of
// neighbours, or fewer where there are fewer chunks. A slice is summed from front to back, and slices
// are added one after another. Weights stay as they are stored; x is rounded before (products_rows.cu).
//
// "Rows" are those of weights, and "columns" the rows of x.
#pragma once
#include "async.cuh"
#include "glu.cuh"
#include "types.cuh"

constexpr int SLICES = 8;
constexpr int WARPS = 8;
constexpr int PRODUCT_THREADS = WARPS * 32;
constexpr int WARP_ROWS = 16;  // of weights, for a warp
constexpr int COLUMNS = 8;     // of an mma
constexpr int MOST_COLUMNS = 128;  // of a block of many
constexpr int PARTS = 3;

// Several products of one x may be parts of one launch: of few columns, or by wide blocks, and without
// ids and `up`.
struct ProductArgs {
    Tensor y[PARTS];
    Tensor weight[PARTS];  // or the gate's
    Tensor bias[PARTS];
    Tensor up;          // the other weight of a gated unit
    Tensor x;
    Tensor ids;         // of mul_mat_id
    Span rounded;       // x, as products_rows.cu writes it: `rounded_bytes` for each of its rows; absent
                        // where x serves as it is, or the kernel rounds it
    Span lists;         // of experts: ExpertLists
    Span sums;          // of slices, where those are computed by different blocks
    i64_t rounded_bytes;
    int glu;
    float alpha;
    float limit;
    int is_aligned;     // weights may be copied by 16 bytes
    int n_row_blocks;   // of the grid, and columns' ones: bounds
    int n_column_blocks;
    int chunk;          // elements
    int columns;        // of a block, for which it has shared memory
    int rounds_x;       // whether the kernel rounds x, of one column in f32
    int are_weights;    // whether no launch writes the weights
    int slice_chunks;   // the most chunks of a slice
    int first_block[PARTS - 1];  // of rows, of the parts behind the first one
};

struct Slice {
    int begin;  // chunks
    int end;
};

__device__ inline int n_slices(int n_chunks) { return min((int)SLICES, n_chunks); }

__device__ inline Slice slice_of(int i, int n_chunks) {
    if (n_chunks < SLICES) return {i, i + 1};
    return {n_chunks * i / SLICES, n_chunks * (i + 1) / SLICES};
}

// --- mul_mat_id: lists of the columns of each expert ------------------------------------------------

// Column t * U + u of [U, T] ids. The lists lie one after another, in the order of experts.
struct ExpertLists {
    const int* first;   // of each expert in `columns`
    const int* count;
    const int* columns;

    __device__ ExpertLists(const Span& memory, int n_experts)
        : first((const int*)memory.data), count(first + n_experts), columns(count + n_experts) {}
};

// --- a column's places ------------------------------------------------------------------------------

// A matrix of y, or for mul_mat_id all of it: where its columns are, and which weights are theirs.
struct Matrix {
    i64_t weight;  // its place in bytes in the tensors of weights
    int n;         // columns
    int i2, i3;    // of y

    __device__ static Matrix of_product(
        const ProductArgs& args, const Tensor& weight, int index, const Run& run
    ) {
        const int n2 = args.x.ne[2].at(run), n3 = args.x.ne[3].at(run);
        if (index >= n2 * n3) return {0, 0, 0, 0};
        if (index == 0) return {0, args.x.ne[1].at(run), 0, 0};
        const int i3 = index / n2, i2 = index - i3 * n2;
        const int r2 = n2 / weight.ne[2].at(run), r3 = n3 / weight.ne[3].at(run);
        const i64_t place = i2 / r2 * weight.nb[2] + i3 / r3 * weight.nb[3];
        return {place, args.x.ne[1].at(run), i2, i3};
    }
};

// The row of x that a column is computed from, in dimensions 1 to 3.
__device__ inline Row row_of_x(
    const ProductArgs& args, const Matrix& matrix, int column, const Run& run
) {
    if (!args.ids.data) return {column, matrix.i2, matrix.i3};
    const int n_used = args.ids.ne[0].at(run), token = column / n_used;
    return {(column - token * n_used) % args.x.ne[1].at(run), token, 0};
}

// That row as it is multiplied: rounded, or x's own.
__device__ inline const char* column_of_x(
    const ProductArgs& args, const Matrix& matrix, int column, const Run& run
) {
    const Row at = row_of_x(args, matrix, column, run);
    if (!args.rounded.data) return args.x.at(at.i1, at.i2, at.i3);
    const i64_t plane = (i64_t)at.i3 * args.x.ne[2].at(run) + at.i2;
    return args.rounded.data + (plane * args.x.ne[1].at(run) + at.i1) * args.rounded_bytes;
}

__device__ inline float* column_of_y(
    const ProductArgs& args, const Matrix& matrix, int column, const Run& run, int part = 0
) {
    if (!args.ids.data) return (float*)args.y[part].at(column, matrix.i2, matrix.i3);
    const int n_used = args.ids.ne[0].at(run), token = column / n_used;
    return (float*)args.y[0].at(column - token * n_used, token, 0);
}

// The expert of a column of mul_mat_id.
__device__ inline int id_of(const Tensor& ids, int column, const Run& run) {
    const int n_used = ids.ne[0].at(run), token = column / n_used;
    return *(const int*)(ids.data + (column - token * n_used) * ids.nb[0] + token * ids.nb[1]);
}

__device__ inline bool is_expert(const ProductArgs& args, int id, const Run& run) {
    return id >= 0 && id < args.weight[0].ne[2].at(run);
}

// What becomes of a sum: a bias is added, or it is the gate of another one.
__device__ inline float finished(
    const ProductArgs& args, float sum, float up, int row, int part = 0
) {
    const Tensor& bias = args.bias[part];
    if (bias.data) return sum + *(const float*)(bias.data + row * bias.nb[0]);
    if (args.up.data) return gated(args.glu, sum, up, args.alpha, args.limit);
    return sum;
}

// A group of 16 rows, or a block of more: which part's, and its first row.
struct RowGroup {
    int part;
    int first_row;

    __device__ RowGroup(const ProductArgs& args, int group, int rows = WARP_ROWS) : part(0) {
#pragma unroll
        for (int i = PARTS - 1; i > 0; --i) {
            if (part > 0 || group < args.first_block[i - 1]) continue;
            part = i;
            group -= args.first_block[i - 1];
        }
        first_row = group * rows;
    }
};

// --- rows of weights in shared memory ---------------------------------------------------------------

// Lane (g, t) of a warp: g = lane / 4, t = lane % 4, as in mma.cuh. It reads rows g and g + 8.
struct Lane {
    int g;
    int t;

    __device__ Lane() : g(threadIdx.x % 32 / 4), t(threadIdx.x % 4) {}
};

// The two rows of a lane, from row `first` of a matrix on; behind the last row, the last one.
struct TwoRows {
    const char* at[2];

    __device__ TwoRows(const Tensor& weight, i64_t place, int first, int g, const Run& run) {
        const int last = weight.ne[1].at(run) - 1;
        for (int i = 0; i < 2; ++i) {
            at[i] = weight.data + place + min(first + g + 8 * i, last) * weight.nb[1];
        }
    }
};

// --- tiles of many columns --------------------------------------------------------------------------

// A warp has several tiles under way: it multiplies one, or a whole number of four.
constexpr int TILES_AT_ONCE = 4;

__device__ inline int whole_tiles(int n_columns) {
    const int at_once = TILES_AT_ONCE * COLUMNS;
    return n_columns <= COLUMNS ? 1 : (n_columns + at_once - 1) / at_once * TILES_AT_ONCE;
}

// f(tile) of each tile, of N at the most.
template <int N, class F>
__device__ inline void each_tile(int n_tiles, F f) {
    if (N == 1 || n_tiles == 1) {
        f(0);
    } else if constexpr (N > 1) {
#pragma unroll
        for (int first = 0; first < N; first += TILES_AT_ONCE) {
            if (first >= n_tiles) break;
#pragma unroll
            for (int i = first; i < first + TILES_AT_ONCE; ++i) f(i);
        }
    }
}
