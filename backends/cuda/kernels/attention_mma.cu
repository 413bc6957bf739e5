// Attention on tensor cores: q, K, V and weights are f16, sums f32.
//
//   q [D, n_q, Hq, S] f32, k [D, ..] and v [Dv, ..] f16 or quantised; see attention.cuh for the order of
//   sums
//   attention_mma   grid (items, heads of K x blocks of heads)
//
// Defines: HEAD, the most elements of a head of K and of V; PADDED, whether they may have fewer;
// CONVERTED, whether rows of K and V are not plain f16 that is aligned to 16 bytes; ROW_TILES, of 16
// rows for each warp; N_GROUPS, of 128 threads.
//
// A block has 64 ROW_TILES rows, heads of q that share a head of K, of one or more queries: 16 ROW_TILES
// for each warp of a group. Groups have the same rows and take chunks in turns. A group takes tiles of
// cells in order, of which the next one is copied to shared memory meanwhile:
//
//   scores  [16, cells]   q k^T: D / 16 products of matrices for every 8 cells
//   weights               p = 2^14 e^(s - m), in registers, as f16: scores' layout is that of a left matrix
//   sums    [16, Dv]      rescaled if a maximum grew, + p v; and + p 1, the sums of weights
//
// q is scaled by a power of 2 for each row, so that no number overflows and rounding is relative to the
// largest element; p by 2^14, so that weights down to 2^-28 have all bits of an f16. Scores keep the
// scale that q k^T has: the exponent of a weight is one fmaf of a score.
//
// A cell's rows of K and V, 2 (D + Dv) bytes, are read once for the rows of a block. ldmatrix brings them
// to every warp: with one tile of 16 rows that takes longer than the products. Two tiles, for prompts,
// halve it, and two groups give tensor cores work while a warp weighs scores or folds a chunk. Only one
// block fits a multiprocessor then. A row's bits are the same in every form.
#include "attention_scores.cuh"
#include "attention_sums.cuh"

// What all rows of a warp see; sets whether any sees something. With a mask, nothing is known to be seen.
template <class S>
__device__ SeenByAll seen_by_warp(const Args& args, const typename S::Shared& shared, bool& any) {
    const int lane = threadIdx.x % 32, r = S::row_of_warp() + lane;
    SeenByAll seen = {0, 0x7fffffff};
    any = false;
    if (lane < S::WARP_ROWS && shared.work.computes(r)) {
        seen = {shared.rows.first[r], shared.rows.end[r]};
        any = seen.first < seen.end;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        seen.first = max(seen.first, __shfl_xor_sync(ALL_LANES, seen.first, d));
        seen.end = min(seen.end, __shfl_xor_sync(ALL_LANES, seen.end, d));
    }
    any = __any_sync(ALL_LANES, any);
    if (args.mask.data) seen.end = 0;
    return seen;
}

// The tiles of a group, in order: `place` is where the next one begins, or -1 after the last one.
template <class S>
struct Cursor {
    int begin, end;  // places of the item
    int chunk;
    int place;

    __device__ Cursor(const Item& item, const Task& task) {
        begin = max((int)chunk_begin(item.chunk), task.first / S::CELLS * S::CELLS);
        end = (int)min((i64_t)task.end, chunk_begin(item.end_chunk));
        chunk = item.chunk + S::group();
        place = chunk < item.end_chunk ? max((int)chunk_begin(chunk), begin) : -1;
    }
    __device__ void advance() {
        if (place < 0) return;
        place += S::CELLS;
        if (place < end && place < chunk_begin(chunk + 1)) return;
        chunk += S::GROUPS;
        const i64_t next = chunk_begin(chunk);
        place = next < end ? (int)next : -1;
    }
};

// The entry for a cell of a thread, of the tile that begins at a place.
struct Entry {
    bool visible;
    int cell;
};

template <class S>
__device__ Entry find_entry(const Args& args, const Run& run, const typename S::Shared& shared,
                            int place) {
    const int thread = S::thread() - (S::THREADS - S::CELLS);  // the last ones: they may be idle
    const int at = place + thread;
    if (thread < 0 || place < 0 || !shared.rows.any_sees(args, at)) return {false, -1};
    return {true, entry_of(args, shared.work, at)};
}

template <class S>
__device__ void store_cell(const Args& args, const Run& run, typename S::Shared& shared, Entry entry,
                           int stage) {
    const int thread = S::thread() - (S::THREADS - S::CELLS);
    if (thread < 0) return;
    const int cell = entry.visible ? existing(run, shared.work, entry.cell) : -1;
    shared.cells[S::group()][stage][thread] = cell;
    const u32_t visible = __ballot_sync(ALL_LANES, cell >= 0);
    if (thread % 32 == 0) shared.n_cells[S::group()][stage][thread / 32] = (u16_t)__popc(visible);
}

template <class S>
__device__ int n_cells_of(const typename S::Shared& shared, int stage) {
    const u16_t* found = shared.n_cells[S::group()][stage];
    if (S::CELL_WARPS == 1) return *found;
    const u32_t both = *(const u32_t*)found;
    return (both & 0xffff) + (both >> 16);
}

// Attends rows of a task to chunks of its cells. Returns whether a sum is not finite.
template <class S>
__device__ bool attend(const Args& args, const Run& run, const Plan& plan, const Item& item, int only,
                       typename S::Shared& shared) {
    const int d = args.k.ne[0].at(run), dv = args.v.ne[0].at(run);
    __syncthreads();  // another item may still use the shared memory
    if (threadIdx.x == 0) {
        const Task& task = plan.tasks[item.task];
        shared.work = {task, rows_of_block(args, run, task, S::ROWS), only, 0, dv,
                       cells_of(args, run)};
        shared.bases = {base_of(args, args.k, shared.work), base_of(args, args.v, shared.work)};
        shared.folded[0] = item.chunk;
    }
    __syncthreads();
    const Work& work = shared.work;
    if (work.task.n_chunks == 0) {
        store_zeros<S>(args, work);
        return false;
    }
    shared.rows.set(args, run, plan, work, shared.queries);
    __syncthreads();
    SeenByAll& span = shared.spans[threadIdx.x / 32];
    bool sees;
    const SeenByAll found = seen_by_warp<S>(args, shared, sees);
    if (threadIdx.x % 32 == 0) span = found;
    Queries<S> q;
    q.load(args, shared, d);
    __syncthreads();
    if (threadIdx.x < S::ROWS) shared.all[threadIdx.x] = empty_softmax();

    // In a turn, a group copies a tile, computes the one before it, and finds the cells of the next. A
    // group whose chunk is complete waits until the one before it is folded.
    typename S::Tiles& tiles = shared.tiles[S::group()];
    Cursor<S> next(item, work.task), copied = next, computed = next;
    copied.place = -1;
    Sums<S> sums;
    sums.clear();
    bool finite = true, is_complete = false;
    int n_cells = 0, stage = 0;
    store_cell<S>(args, run, shared, find_entry<S>(args, run, shared, next.place), 0);
#pragma unroll 1
    for (int turn = 0;; turn ^= 1) {
        copy_async_wait<0>();
        __syncthreads();
        const int folded = shared.folded[turn];
        if (folded == item.end_chunk) break;
        if (S::GROUPS == 1 || !is_complete) {
            computed = copied;
            copied = next;
            next.advance();
            const int n_computed = n_cells;
            n_cells = n_cells_of<S>(shared, stage);
            if (n_cells) load_tile<S>(args, shared, tiles, stage, n_cells, d, dv);
            copy_async_commit();
            stage ^= 1;
            const Entry entry = find_entry<S>(args, run, shared, next.place);
            if (n_computed && sees) {
                const bool sees_all = span.sees(computed.place, S::CELLS);
                Scores<S> s = {};
                multiply_keys<S>(shared, tiles.k[stage], q, d, s);
                weigh<S>(args, shared, computed.place, sees_all, s, sums);
                multiply_values<S>(tiles.v[stage], s, dv, sums);
            }
            store_cell<S>(args, run, shared, entry, stage);
            is_complete = computed.place >= 0 && (copied.place < 0 || copied.chunk != computed.chunk);
        }
        const bool folds = is_complete && (S::GROUPS == 1 || computed.chunk == folded);
        if (folds) {
            finite &= finish_chunk<S>(args, run, shared, item, folded, sums);
            sums.clear();
            is_complete = false;
        }
        if ((folded - item.chunk) % S::GROUPS == S::group() && S::thread() == 0) {
            shared.folded[turn ^ 1] = folded + folds;
        }
    }
    return !__syncthreads_and(finite);
}

// Where V is not finite, rows that do not see the cell get 0 * inf: then each row is computed alone.
template <class S>
__device__ void attend_all(const Args& args, const Run& run) {
    DYNAMIC_SHARED_AT(2 * S::N, typename S::Shared, shared);
    const Plan plan(args);
    const int n_items = plan.header->n_items;
    for (int i = blockIdx.x; i < n_items; i += gridDim.x) {
        const Item item = plan.items[n_items - 1 - i];
#pragma unroll 1
        for (int only = -1; only < S::ROWS; ++only) {
            const bool wrong = attend<S>(args, run, plan, item, only, *shared);
            if (only < 0 && !wrong) break;
        }
        combine_if_last<S::ROWS, S::GROUPS * S::WARPS>(args, run, plan, item.task);
    }
}

typedef Size<HEAD, HEAD <= 128 ? 64 : 32, !PADDED, CONVERTED, ROW_TILES, N_GROUPS> Defined;
constexpr int BLOCKS = N_GROUPS > 1 ? 1 : HEAD <= 64 ? 3 : 2;
KERNEL_BLOCKS(attention_mma, Args, Defined::THREADS * N_GROUPS, BLOCKS) {
    attend_all<Defined>(args, run);
}
