// The lightning indexer's scores: products of small heads with one key for all of them.
//
//   grid  a block for CELLS cells and one token; x: tiles of cells of token 0, of token 1, …
//   A thread computes PART cells by PART heads: bound by arithmetic. Tiles whose cells are all masked
//   are not computed.
#include "elementwise.cuh"
#include "quants.cuh"

constexpr int THREADS = 256;
constexpr int CELLS = 64;
constexpr int HEADS = 64;  // at a time
constexpr int DEPTH = 32;  // elements of keys and queries in shared memory at a time
constexpr int PART = 4;
constexpr int TEAMS = HEADS / PART;

struct Args {
    Tensor y;        // [N, T, 1, S]
    Tensor q;        // [D, H, T, S]
    Tensor k;        // [D, 1, N, S]
    Tensor weights;  // [H, T, 1, S]
    Tensor mask;     // [N, T, 1, M]
    int k_type;
};

// Elements i to i + 3 of a row of n; zeros past its end.
__device__ inline void load_four(int type, const char* row, int i, int n, float (&v)[PIECE]) {
    switch (type) {
        case 2: q4_0::load_four(row, i, v); break;
        case 3: q4_1::load_four(row, i, v); break;
        case 6: q5_0::load_four(row, i, v); break;
        case 7: q5_1::load_four(row, i, v); break;
        case 8: q8_0::load_four(row, i, v); break;
        case 20: iq4_nl::load_four(row, i, v); break;
        default: {
            const int size = size_of(type);
            load_piece(type, row + (i64_t)i * size, size, min(PIECE, n - i), v);
        }
    }
}

typedef float Tile[DEPTH][CELLS + PART];  // padded: its columns are in many banks
static_assert(CELLS == HEADS, "keys and queries have tiles of one size");

// Elements first to first + DEPTH - 1 of CELLS rows of n elements, transposed. row_of(i) is null for a row
// that is not there.
template <class RowOf>
__device__ inline void load_tile(Tile& tile, int type, int first, int n, const RowOf& row_of) {
    constexpr int PIECES = DEPTH / PIECE;  // of a row
#pragma unroll
    for (int i = threadIdx.x; i < CELLS * PIECES; i += THREADS) {
        const int column = i / PIECES, element = i % PIECES * PIECE;
        const char* row = row_of(column);
        float v[PIECE] = {};
        if (row && first + element < n) load_four(type, row, first + element, n, v);
#pragma unroll
        for (int j = 0; j < PIECE; ++j) tile[element + j][column] = v[j];
    }
}

// dots += queries of PART heads * keys of PART cells, element by element of DEPTH.
__device__ inline void add_products(
    const Tile& keys, const Tile& queries, int cell, int head, float (&dots)[PART][PART]
) {
#pragma unroll 8
    for (int i = 0; i < DEPTH; ++i) {
        const float4 key = *(const float4*)&keys[i][cell];
        const float4 query = *(const float4*)&queries[i][head];
        const float of_cells[PART] = {key.x, key.y, key.z, key.w};
        const float of_heads[PART] = {query.x, query.y, query.z, query.w};
#pragma unroll
        for (int h = 0; h < PART; ++h) {
#pragma unroll
            for (int c = 0; c < PART; ++c) dots[h][c] = fmaf(of_heads[h], of_cells[c], dots[h][c]);
        }
    }
}

// sums += weight * relu(dot) of PART heads from `head` on, or as many as there are. NaN stays.
__device__ inline void add_heads(
    const float* weights, int head, int n_heads, const float (&dots)[PART][PART], float (&sums)[PART]
) {
#pragma unroll
    for (int h = 0; h < PART; ++h) {
        if (head + h >= n_heads) break;
        const float weight = weights[head + h];
#pragma unroll
        for (int c = 0; c < PART; ++c) {
            const float seen = dots[h][c] < 0.0f ? 0.0f : dots[h][c];
            sums[c] = fmaf(seen, weight, sums[c]);
        }
    }
}

// y[c, t, s] = mask[c, t, s % M] + sum_h weights[h, t, s] * relu(sum_i q[i, h, t, s] * k[i, c, s])
// Elements are summed in order; then heads, by fours.
KERNEL(lightning_indexer, Args, THREADS) {
    __shared__ __align__(16) Tile keys;
    __shared__ __align__(16) Tile queries;
    __shared__ float of_teams[TEAMS][CELLS];
    const Tensor &q = args.q, &k = args.k, &weights = args.weights;
    const int n = q.ne[0].at(run), n_heads = q.ne[1].at(run), n_cells = k.ne[2].at(run);
    const Quotient tile = divided(blockIdx.x, (n_cells + CELLS - 1) / CELLS);
    const Quotient token = divided(tile.whole, q.ne[2].at(run));
    const i64_t t = token.rest, s = token.whole;
    if (s >= q.ne[3].at(run)) return;

    const int tid = threadIdx.x, first_cell = (int)tile.rest * CELLS;
    // Threads below CELLS have a cell each, apart from the products.
    const bool has_cell = tid < CELLS && first_cell + tid < n_cells;
    float bias = 0.0f, total = 0.0f;
    if (has_cell) bias = f16::load(args.mask.at(t, 0, s % args.mask.ne[3].at(run)), first_cell + tid);
    const bool is_masked = __float_as_uint(bias) == 0xff800000u;
    if (__syncthreads_or(has_cell && !is_masked)) {
        const int cell = tid % (CELLS / PART) * PART, team = tid / (CELLS / PART);
        for (int first_head = 0; first_head < n_heads; first_head += HEADS) {
            const bool has_heads = first_head + team * PART < n_heads;
            float dots[PART][PART] = {};  // heads, cells
            for (int first = 0; first < n; first += DEPTH) {
                __syncthreads();  // all have read the tiles before
                load_tile(keys, args.k_type, first, n, [&](int i) -> const char* {
                    return first_cell + i < n_cells ? k.at(0, first_cell + i, s) : nullptr;
                });
                load_tile(queries, TYPE_F32, first, n, [&](int i) -> const char* {
                    return first_head + i < n_heads ? q.at(first_head + i, t, s) : nullptr;
                });
                __syncthreads();
                if (has_heads) add_products(keys, queries, cell, team * PART, dots);
            }
            float sums[PART] = {};
            const int head = first_head + team * PART;
            add_heads((const float*)weights.at(t, 0, s), head, n_heads, dots, sums);
#pragma unroll
            for (int c = 0; c < PART; ++c) of_teams[team][cell + c] = sums[c];
            __syncthreads();
            // The loop's first barrier keeps `of_teams` until all of its sums are read.
            const int n_teams = min(TEAMS, (n_heads - first_head + PART - 1) / PART);
            for (int i = 0; i < n_teams && has_cell; ++i) total += of_teams[i][tid];
        }
    }
    if (has_cell) {
        const float score = is_masked ? bias : total + bias;
        f32::store(args.y.at(t, 0, s), first_cell + tid, score);
    }
}
