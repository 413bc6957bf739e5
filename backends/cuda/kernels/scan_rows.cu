// Which rows of a table of states a scan reads and writes: whether sequences can store theirs at once.
//
//   grid  one block: S * S pairs of sequences
#include "scan_states.cuh"

constexpr int THREADS = 1024;

struct Args {
    Tensor ids;     // [S], the row that each sequence reads
    Tensor to;      // [S], the one that it writes
    Tensor stored;  // [state, rows]
    Span rows;      // written: what is found, and the counter 0
};

// ROWS_OVERLAP: a row is written by one sequence, and read or written by another.
KERNEL(scan_rows, Args, THREADS) {
    const int n_seqs = args.to.ne[0].at(run), n_rows = args.stored.ne[1].at(run);
    const int *ids = (const int*)args.ids.data, *to = (const int*)args.to.data;
    bool is_bad = false, overlaps = false;
    for (int i = threadIdx.x; i < 2 * n_seqs; i += THREADS) {
        const int row = i < n_seqs ? ids[i] : to[i - n_seqs];
        if (row >= 0 && row < n_rows) continue;
        fail(run, row);
        is_bad = true;
    }
    for (i64_t i = threadIdx.x; i < (i64_t)n_seqs * n_seqs; i += THREADS) {
        const Quotient pair = divided(i, n_seqs);
        const int row = to[pair.whole];
        if (pair.whole != pair.rest) overlaps |= ids[pair.rest] == row || to[pair.rest] == row;
    }
    is_bad = __syncthreads_or(is_bad);
    overlaps = __syncthreads_or(overlaps);
    if (threadIdx.x == 0) {
        int* found = (int*)args.rows.data;
        found[0] = is_bad ? ROWS_BAD : overlaps ? ROWS_OVERLAP : ROWS_APART;
        found[1] = 0;
    }
}
