// Rows to the places that indices name: what set_rows of plain types and of quantised ones share.
//
//   y[:, ids[i, a % A1, b % B1], a, b] = x[:, i, a, b]
//
// Of rows with one index the last counts, and if any index is out of range nothing is written. So a row
// must know all indices. Up to FEW of them each block reads into shared memory; for more there is a
// table of the last row of each index, made by reset_owners and claim_rows (rows.cu) in time that does
// not grow with their square.
#pragma once
#include "elementwise.cuh"

constexpr int SET_THREADS = 256;
constexpr int FEW = 1024;  // rows.py knows it too

struct SetArgs {
    Tensor y;
    Tensor x;
    Tensor ids;
    Span owners;  // i32 [rows of y, lists], if there are more than FEW indices
    int ids_are_i64;
    int y_type;
    int x_type;
};

__device__ inline i64_t index_at(const SetArgs& args, i64_t i, i64_t a, i64_t b) {
    const Tensor& ids = args.ids;
    const char* at = ids.data + i * ids.nb[0] + a * ids.nb[1] + b * ids.nb[2];
    return args.ids_are_i64 ? *(const i64_t*)at : *(const int*)at;
}

// Where the last row of an index is kept.
__device__ inline int* owner_of(const SetArgs& args, i64_t list, i64_t id) {
    return (int*)args.owners.data + list * args.y.ne[1].bound + id;
}

// A part of a row of x, and the list that has the row's index.
struct Part {
    Row row;
    int part;
    int list_a;
    int list_b;
    i64_t list;
};

// That of this thread, of `per_row` parts of each row with `lanes` threads each; false if there is none.
__device__ inline bool part_of(
    Part& found, const SetArgs& args, int per_row, int lanes, const Run& run
) {
    const i64_t i = ((i64_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    if (i >= args.x.n_rows(run) * per_row) return false;
    const Quotient row = divided(i, per_row);
    found.part = (int)row.rest;
    found.row = fast_row_of(args.x, row.whole, run);
    found.list_a = found.row.i2 % args.ids.ne[1].at(run);
    found.list_b = found.row.i3 % args.ids.ne[2].at(run);
    found.list = (i64_t)found.list_b * args.ids.ne[1].at(run) + found.list_a;
    return true;
}

// Write::write(args, x row, y row, part, run) writes a part of a row, by Write::LANES threads.
template <class Write>
__device__ inline void write_part(const SetArgs& args, const Part& at, i64_t id, const Run& run) {
    const char* x = args.x.at(at.row.i1, at.row.i2, at.row.i3);
    Write::write(args, x, args.y.at(id, at.row.i2, at.row.i3), at.part, run);
}

// Up to FEW indices, in all lists.
template <class Write>
__device__ inline void set_few(const SetArgs& args, int per_row, const Run& run) {
    __shared__ int ids[FEW];
    const int n = args.ids.ne[0].at(run), n_a = args.ids.ne[1].at(run);
    const int n_ids = n * n_a * args.ids.ne[2].at(run);
    const i64_t n_rows = args.y.ne[1].at(run);
    bool bad = false;
    for (int i = threadIdx.x; i < n_ids; i += SET_THREADS) {
        const int list = i / n;
        const i64_t id = index_at(args, i - list * n, list % n_a, list / n_a);
        ids[i] = (int)id;
        if (id < 0 || id >= n_rows) {
            fail(run, id);
            bad = true;
        }
    }
    if (__syncthreads_or(bad)) return;
    Part at;
    if (!part_of(at, args, per_row, Write::LANES, run)) return;
    const int* list = ids + at.list * n;
    const int id = list[at.row.i1];
    for (int later = at.row.i1 + 1; later < n; ++later) {
        if (list[later] == id) return;
    }
    write_part<Write>(args, at, id, run);
}

// Any number of indices, whose last rows are known.
template <class Write>
__device__ inline void set_owned(const SetArgs& args, int per_row, const Run& run) {
    if (run.failure->launch != 0) return;
    Part at;
    if (!part_of(at, args, per_row, Write::LANES, run)) return;
    const i64_t id = index_at(args, at.row.i1, at.list_a, at.list_b);
    if (*owner_of(args, at.list, id) == at.row.i1) write_part<Write>(args, at, id, run);
}
