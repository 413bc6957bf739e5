// Gradients of get_rows and of repeat: sums over what was copied to several places, in a fixed order.
#include "elementwise.cuh"

constexpr int THREADS = 256;

// --- get_rows_back --------------------------------------------------------------------------------

struct GetBackArgs {
    Tensor y;
    Tensor grad;
    Tensor ids;
    int type;  // of grad
};

// y[:, r] = sum of grad[:, i] over all i with ids[i] = r, in their order; nothing is written if any
// index is out of range. A block has a row of y, a column of it for each thread, and looks at all indices.
KERNEL(get_rows_back, GetBackArgs, THREADS) {
    __shared__ int ids[THREADS];
    const Tensor &y = args.y, &grad = args.grad;
    const int n_columns = y.ne[0].at(run), n_rows = y.ne[1].at(run), n_ids = grad.ne[1].at(run);
    const int n_threads = blockDim.x;
    const Quotient at = divided(blockIdx.x, (y.ne[0].bound + n_threads - 1) / n_threads);
    const int row = (int)at.whole, column = (int)at.rest * n_threads + threadIdx.x;
    float sum = 0.0f;
    bool bad = false;
    for (int first = 0; first < n_ids; first += n_threads) {
        const int i = first + threadIdx.x;
        const int id = i < n_ids ? *(const int*)(args.ids.data + i * args.ids.nb[0]) : row - 1;
        if (i < n_ids && (id < 0 || id >= n_rows)) {
            fail(run, id);
            bad = true;
        }
        ids[threadIdx.x] = id;
        if (__syncthreads_or(id == row) && column < n_columns) {
            for (int j = 0; j < n_threads; ++j) {
                if (ids[j] != row) continue;
                const char* from = grad.at(first + j, 0, 0) + column * (i64_t)size_of(args.type);
                sum += load_one(args.type, from);
            }
        }
        __syncthreads();
    }
    if (__syncthreads_or(bad) || column >= n_columns) return;
    f32::store(y.at(row, 0, 0), column, sum);
}

// --- repeat_back ----------------------------------------------------------------------------------

struct RepeatBackArgs {
    Tensor y;
    Tensor x;
    int per_block;  // elements of y: THREADS, or 1 with all threads for its copies
};

constexpr int SERIAL = 256;  // copies that one thread adds up; rows_back.py knows it too

// y[i] = sum of x[j] over all j with j % ne = i, in every dimension. Up to SERIAL copies are added in
// the order in which they lie, more by a block.
KERNEL(repeat_back, RepeatBackArgs, THREADS) {
    const Tensor &y = args.y, &x = args.x;
    const bool one = args.per_block == 1;
    const i64_t i = one ? blockIdx.x : (i64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= y.n_elements(run)) return;
    const int n0 = y.ne[0].at(run), n1 = y.ne[1].at(run), n2 = y.ne[2].at(run), n3 = y.ne[3].at(run);
    const Quotient of_row = divided(i, n0);
    const Row at = fast_row_of(y, of_row.whole, run);
    const int c0 = x.ne[0].at(run) / n0, c1 = x.ne[1].at(run) / n1, c2 = x.ne[2].at(run) / n2;
    const i64_t n_copies = (i64_t)c0 * c1 * c2 * (x.ne[3].at(run) / n3);
    const bool shared = one && n_copies > SERIAL;
    if (one && !shared && threadIdx.x > 0) return;
    float sum = 0.0f;
    for (i64_t copy = shared ? threadIdx.x : 0; copy < n_copies; copy += shared ? THREADS : 1) {
        const Quotient along = divided(copy, c0);
        const Quotient rows = divided(along.whole, c1);
        const Quotient planes = divided(rows.whole, c2);
        const char* row = x.at(
            at.i1 + rows.rest * n1, at.i2 + planes.rest * n2, at.i3 + planes.whole * n3
        );
        sum += f32::load(row, of_row.rest + along.rest * n0);
    }
    if (shared) sum = block_sum<THREADS>(sum);
    if (!shared || threadIdx.x == 0) f32::store(y.at(at.i1, at.i2, at.i3), of_row.rest, sum);
}
