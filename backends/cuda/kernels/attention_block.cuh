// Rows of a block of attention, heads of queries, and the cells that they see.
#pragma once
#include "attention.cuh"

// A row of a block: a head of one of the task's queries.
struct BlockRow {
    int i;  // of the query
    int head;
    bool exists;
};

// Which rows a block has.
struct BlockRows {
    int n_heads;     // of one query
    int first_head;  // of q
    int n_queries;
    int kv_head;

    __device__ BlockRow at(int r) const {
        const int i = r / n_heads;
        return {i, first_head + r - i * n_heads, i < n_queries};
    }
    __device__ int count() const { return n_heads * n_queries; }
};

// Block y takes a head of K, and of the heads of q that share it up to `rows`.
__device__ inline BlockRows rows_of_block(const Args& args, const Run& run, const Task& task,
                                          int rows) {
    const int n_kv_heads = args.k.ne[2].at(run), n_shared = args.q.ne[2].at(run) / n_kv_heads;
    const int kv_head = blockIdx.y % n_kv_heads, first = blockIdx.y / n_kv_heads * rows;
    return {min(rows, n_shared - first), kv_head * n_shared + first, task.n_queries, kv_head};
}

// What a block has of an item: columns first .. of V for its rows.
struct Work {
    Task task;
    BlockRows rows;
    int only;  // the row that is computed; -1: all
    int first;
    int dv;
    u32_t n_cells;  // that a list may have

    __device__ bool computes(int r) const { return rows.at(r).exists && (only < 0 || only == r); }
    // The slot of a chunk for the first query.
    __device__ int slot_of(int chunk) const {
        return task.slot + (chunk - task.first_chunk) * task.n_queries;
    }
};

// Cell 0 of a head of K or V. Listed cells are those of all streams.
__device__ inline const char* base_of(const Args& args, const Tensor& x, const Work& work) {
    return x.at(0, work.rows.kv_head, args.cells.data ? 0 : work.task.stream);
}

constexpr u16_t HALF_MINUS_INFINITY = 0xfc00;

// What the rows of a block see, in shared memory.
template <int ROWS>
struct RowTable {
    const u16_t* masks[ROWS];  // entry 0 belongs to place `first`; null without a mask
    float slopes[ROWS];
    int first[ROWS];           // places that the row sees: first .. end - 1
    int end[ROWS];
    u32_t different;           // how many rows, and << 16, how far apart those that may see differently

    // Each of the first ROWS threads sets its own, and where q of the row is. A row that is not
    // computed sees nothing.
    __device__ void set(const Args& args, const Run& run, const Plan& plan, const Work& work,
                        const float* (&queries)[ROWS]) {
        const int r = threadIdx.x;
        if (r >= ROWS) return;
        if (r == 0) {
            const bool alike = work.only < 0 && (!args.mask.data || args.mask.ne[2].at(run) == 1);
            different = work.rows.count() | (alike ? work.rows.n_heads : 1) << 16;
        }
        first[r] = end[r] = 0;
        queries[r] = nullptr;
        masks[r] = nullptr;
        slopes[r] = 1.0f;
        if (!work.computes(r)) return;
        const Task& task = work.task;
        const BlockRow row = work.rows.at(r);
        const Query& query = plan.query_of(task, row.i, args.q.ne[1].at(run));
        const int i = task.query + row.i;
        first[r] = query.first;
        end[r] = query.end;
        queries[r] = (const float*)args.q.at(i, row.head, task.stream);
        if (args.mask.data) {
            const int head = row.head % args.mask.ne[2].at(run);
            const int stream = task.stream % args.mask.ne[3].at(run);
            masks[r] = (const u16_t*)args.mask.at(i, head, stream);
        }
        if (args.max_bias > 0.0f) {
            slopes[r] = alibi_slope(args.max_bias, row.head, args.q.ne[2].at(run));
        }
    }

    __device__ bool sees(bool masked, int r, int place) const {
        const int i = place - first[r];
        if (i < 0 || place >= end[r]) return false;
        return !masked || masks[r][i] != HALF_MINUS_INFINITY;
    }

    // Whether any row sees a place.
    __device__ bool any_sees(const Args& args, int place) const {
        const int n = different & 0xffff, step = different >> 16;
#pragma unroll 1
        for (int r = 0; r < n; r += step) {
            if (sees(args.mask.data, r, place)) return true;
        }
        return false;
    }

    // The finished score of a row and a place, from one that is scaled and capped.
    __device__ float score(int r, int place, float score) const {
        const u16_t* mask = masks[r];
        if (!sees(mask, r, place)) return minus_infinity();
        return mask ? fmaf(half_to_float(mask[place - first[r]]), slopes[r], score) : score;
    }
};

// The entry for a place that is seen: a cell, checked by `existing`.
__device__ inline int entry_of(const Args& args, const Work& work, int place) {
    if (!args.cells.data) return place;
    return ((const int*)args.cells.at(work.task.list, 0, 0))[place];
}

// Cells that a list may have. Without lists, places are cells, and those that are seen exist.
__device__ inline u32_t cells_of(const Args& args, const Run& run) {
    if (!args.cells.data) return 0x80000000u;
    return (u32_t)min((i64_t)args.k.ne[1].at(run) * args.k.ne[3].at(run), (i64_t)0x80000000ll);
}

// A cell, or -1 if there is no such cell, which is reported.
__device__ inline int existing(const Run& run, const Work& work, int cell) {
    if ((u32_t)cell < work.n_cells) return cell;
    fail(run, cell);
    return -1;
}

// --- tasks that several blocks have attended to ---

constexpr int AHEAD = 8;    // chunks whose states are read before they are needed
constexpr int AT_ONCE = 4;  // columns of a lane

// Columns `first`, first + 32 .. of a row: the states of its chunks from `slot` on, folded in order.
__device__ inline void combine_columns(
    const Args& args, const Partials& partials, const Task& task, const BlockRow& row, int first
) {
    Softmax state = empty_softmax();
    float sum[AT_ONCE] = {};
    for (int begin = 0; begin < task.n_chunks; begin += AHEAD) {
        Softmax softmax[AHEAD];
        float sums[AHEAD][AT_ONCE];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int chunk = min(begin + j, task.n_chunks - 1);
            const i64_t at = partials.index(task.slot + row.i + chunk * task.n_queries, row.head);
            softmax[j] = partials.softmax[at];
#pragma unroll
            for (int c = 0; c < AT_ONCE; ++c) {
                const int column = min(first + 32 * c, partials.dv - 1);
                sums[j][c] = partials.sums[at * partials.dv + column];
            }
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (begin + j >= task.n_chunks) break;
            const Fold f = fold(state, softmax[j]);
#pragma unroll
            for (int c = 0; c < AT_ONCE; ++c) {
                sum[c] = fmaf(sums[j][c], f.added_factor, sum[c] * f.factor);
            }
        }
    }
    const float factor = final_factor(state, sink_of(args, row.head), args.unit);
    float* y = (float*)args.y.at(row.head, task.query + row.i, task.stream);
    for (int c = 0; c < AT_ONCE; ++c) {
        if (first + 32 * c < partials.dv) y[first + 32 * c] = final_value(sum[c], factor);
    }
}

// The block that is the last to store states of a task's rows folds them, a warp for each row.
template <int ROWS, int WARPS>
__device__ void combine_if_last(const Args& args, const Run& run, const Plan& plan, int i_task) {
    const Task task = plan.tasks[i_task];
    if (task.slot < 0) return;
    int* arrived = plan.arrived + i_task * gridDim.y + blockIdx.y;
    if (!is_last_block(arrived, task.n_items * gridDim.z)) return;
    const BlockRows rows = rows_of_block(args, run, task, ROWS);
    const Partials partials(args, run);
    for (int r = threadIdx.x / 32; r < rows.count(); r += WARPS) {
        for (int first = threadIdx.x % 32; first < partials.dv; first += 32 * AT_ONCE) {
            combine_columns(args, partials, task, rows.at(r), first);
        }
    }
}
