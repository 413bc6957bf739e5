// Where the states of a scan's sequences are: side by side, the new ones in the result; or in rows of a
// table, where a scan is fused with what reads them there and what writes them.
//
// A row is read once and written once. What one sequence writes another may read, as sequences of a
// fork do: then the new states are kept in the result, and the last block stores them in the table.
// Whether that is so depends on the lists of rows only, which all layers share: scan_rows (scan_rows.cu)
// finds it out once.
#pragma once
#include "scan.cuh"

enum { ROWS_APART = 0, ROWS_OVERLAP = 1, ROWS_BAD = -1 };

// The last fields of the arguments of scans. Those after spans are only there for a table.
struct Lists {
    Tensor spans;   // [2, S], see Part
    Tensor to;      // [S], the row of each sequence's new state
    Tensor stored;  // [state, rows], the table
    Span rows;      // what scan_rows has found, and a counter of blocks

    __device__ int found() const { return stored.data ? *(const int*)rows.data : ROWS_APART; }
    __device__ float* row(i64_t seq) const {
        return (float*)stored.at(((const int*)to.data)[seq], 0, 0);
    }
};

// The new state of a sequence, whose place in the result is `in_result`.
__device__ inline float* new_state(const Lists& lists, i64_t seq, float* in_result) {
    return lists.stored.data && lists.found() == ROWS_APART ? lists.row(seq) : in_result;
}

// Stores those that are kept in the result, `n` numbers each. All threads of all blocks call it.
__device__ inline void store_kept(const Lists& lists, const float* in_result, i64_t n, const Run& run) {
    if (lists.found() != ROWS_OVERLAP) return;
    if (!is_last_block((int*)lists.rows.data + 1, gridDim.x)) return;
    const int n_seqs = lists.to.ne[0].at(run);
    for (i64_t i = threadIdx.x; i < n; i += blockDim.x) {
        for (i64_t seq = 0; seq < n_seqs; ++seq) lists.row(seq)[i] = in_result[seq * n + i];
    }
}
