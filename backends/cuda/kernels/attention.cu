// Attention, one query or many, in f32: plan, attend.
//
//   q, y f32; K and V of any type of caches, rows contiguous; see attention.cuh for the order of sums
//
//   attention_plan      one block: what each query sees, tasks, and how their chunks are cut into items
//   attention_S         grid (items, heads of K x blocks of heads, columns of V / 128 S)
//                       8 rows of a block: heads that share a head of K, of one or more queries
//
// A block of attention_S reads K and V once for its rows, as f32 through shared memory: a tile of 64
// cells, 128 elements at a time. Per cell it moves the bytes of its row of K and of V; states of split
// tasks are 4 (Dv + 2) bytes for each row and chunk.
#include "attention_block.cuh"
#include "attention_rows.cuh"

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
constexpr int TILE = 64;  // cells
constexpr int ROWS = 8;
constexpr int SLICE = 128;        // elements of a row at a time
constexpr int PITCH = SLICE + 4;  // of rows in shared memory: cells lie in different banks

// --- the plan ---

constexpr int PLANNERS = 256;
constexpr int COST_CELLS = 64;  // work is counted in tiles of so many cells
constexpr int LEAST_COST = CHUNK / COST_CELLS;  // that is worth a block

// The sum over the threads before this one; `total` is that of all.
__device__ int sum_before(int v, int& total) {
    __shared__ int of_warps[PLANNERS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = v;
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(ALL_LANES, sum, d);
        if (lane >= d) sum += other;
    }
    __syncthreads();  // another call may still read
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    int before = 0;
    total = 0;
    for (int i = 0; i < PLANNERS / 32; ++i) {
        if (i < warp) before += of_warps[i];
        total += of_warps[i];
    }
    return before + sum - v;
}

// What query i of a stream sees. What does not exist is reported, and nothing is seen.
__device__ Query checked_query(const Args& args, const Run& run, int i, int stream) {
    if (args.cells.data == nullptr) return {stream, 0, args.k.ne[1].at(run)};
    const int* seen = (const int*)args.seen.at(i, stream, 0);
    const int list = seen[0], first = seen[1], n = seen[2];
    const int n_max = args.cells.ne[0].at(run);
    const bool too_many = args.mask.data && n > args.mask.ne[0].at(run);
    i64_t wrong = 0;
    if (list < 0 || list >= args.cells.ne[1].at(run)) {
        wrong = list;
    } else if (first < 0 || first > n_max) {
        wrong = first;
    } else if (n < 0 || too_many) {
        wrong = n;
    } else if ((i64_t)first + n > n_max) {
        wrong = (i64_t)first + n - 1;
    } else {
        return {list, first, first + n};
    }
    fail(run, wrong);
    return {0, 0, 0};
}

__device__ void plan_task(const Plan& plan, Task& task, int n_query) {
    int first = 0x7fffffff, end = 0;
    for (int i = 0; i < task.n_queries; ++i) {
        const Query& query = plan.query_of(task, i, n_query);
        if (query.first >= query.end) continue;
        first = min(first, query.first);
        end = max(end, query.end);
    }
    task.first = min(first, end);
    task.end = end;
    task.first_chunk = end > 0 ? chunk_of(first) : 0;
    task.n_chunks = end > 0 ? chunk_of(end - 1) + 1 - task.first_chunk : 0;
    task.slot = -1;
}

// The work for places first .. end - 1.
__device__ inline int cost_of(i64_t first, i64_t end) {
    return max(1, (int)((end + COST_CELLS - 1) / COST_CELLS - first / COST_CELLS));
}

// The end of an item that begins at a chunk, with work of `share` at least.
__device__ int item_end(const Task& task, int chunk, int share) {
    const int end = task.first_chunk + task.n_chunks;
    const i64_t begin = chunk_begin(chunk);
    do ++chunk;
    while (chunk < end && (chunk_begin(chunk) - begin) / COST_CELLS < share);
    return chunk;
}

__device__ int count_items(const Task& task, int share) {
    int n = 0;
    for (int chunk = task.first_chunk; chunk < task.first_chunk + task.n_chunks; ++n) {
        chunk = item_end(task, chunk, share);
    }
    return n;
}

// Tasks begin where a stream does, at every `task_queries` queries of it, and where lists change.
__device__ int plan_tasks(const Args& args, const Plan& plan, int n_query, int n_queries) {
    int n_tasks = 0;
    for (int base = 0; base < n_queries; base += PLANNERS) {
        const int i = base + (int)threadIdx.x;
        bool begins = false;
        if (i < n_queries) {
            begins = i % n_query % args.task_queries == 0;
            begins = begins || plan.queries[i].list != plan.queries[i - 1].list;
        }
        int n_begun;
        const int at = n_tasks + sum_before(begins, n_begun);
        if (begins) {
            int n = 1;
            while (n < args.task_queries && (i + n) % n_query % args.task_queries != 0 &&
                   plan.queries[i + n].list == plan.queries[i].list) {
                ++n;
            }
            Task task = {i / n_query, i % n_query, n, plan.queries[i].list};
            plan_task(plan, task, n_query);
            plan.tasks[at] = task;
        }
        n_tasks += n_begun;
    }
    return n_tasks;
}

KERNEL(attention_plan, Args, PLANNERS) {
    const Plan plan(args);
    const int n_query = args.q.ne[1].at(run), n_queries = n_query * args.q.ne[3].at(run);
    for (int i = threadIdx.x; i < n_queries; i += PLANNERS) {
        plan.queries[i] = checked_query(args, run, i % n_query, i / n_query);
    }
    __syncthreads();
    const int n_tasks = plan_tasks(args, plan, n_query, n_queries);
    __syncthreads();

    int work = 0;
    for (int base = 0; base < n_tasks; base += PLANNERS) {
        const int i = base + (int)threadIdx.x;
        int sum;
        sum_before(i < n_tasks ? cost_of(plan.tasks[i].first, plan.tasks[i].end) : 0, sum);
        work += sum;
    }
    const i64_t blocks_work = (i64_t)work * args.blocks_per_item;
    const int share = max(LEAST_COST, (int)((blocks_work + args.target_blocks - 1) / args.target_blocks));

    int n_items = 0, n_slots = 0;
    for (int base = 0; base < n_tasks; base += PLANNERS) {
        const int i = base + (int)threadIdx.x;
        Task task = {};
        if (i < n_tasks) task = plan.tasks[i];
        bool split = i < n_tasks && task.n_chunks > 1 && cost_of(task.first, task.end) > share;
        int total;
        const int slot = n_slots + sum_before(split ? task.n_queries * task.n_chunks : 0, total);
        if (split && slot + task.n_queries * task.n_chunks > args.max_slots) split = false;
        n_slots += total;
        int n = i < n_tasks ? 1 : 0;
        if (split) {
            n = count_items(task, share);
            plan.tasks[i].slot = slot;
            plan.tasks[i].n_items = n;
        }
        int at = n_items + sum_before(n, total);
        n_items += total;
        for (int chunk = task.first_chunk; n > 0; --n, ++at) {
            const int end = split ? item_end(task, chunk, share) : chunk + task.n_chunks;
            plan.items[at] = {i, chunk, end};
            chunk = end;
        }
    }
    if (threadIdx.x == 0) *plan.header = {n_tasks, n_items};
    for (int i = threadIdx.x; i < n_tasks * args.blocks_per_item; i += PLANNERS) plan.arrived[i] = 0;
}

// --- attend ---

typedef float Tile[TILE][PITCH];

struct Shared {
    Tile tile;  // rows of K, then of V
    float q[ROWS][SLICE];
    float scores[TILE][ROWS + 4];  // then weights
    int cells[TILE];               // rows of K and V; -1 for those that no row sees
    Softmax chunk[ROWS];           // of the chunk
    Softmax all[ROWS];             // of the chunks before
    float rescale[ROWS];
    Fold folds[ROWS];
    RowTable<ROWS> rows;
    const float* queries[ROWS];
};

// The cells of a tile that any row sees; false if there are none.
__device__ bool list_cells(const Args& args, const Run& run, const Work& work, int place,
                           Shared& shared) {
    bool visible = false;
    if (threadIdx.x < TILE) {
        place += threadIdx.x;
        visible = shared.rows.any_sees(args, place);
        const int cell = visible ? existing(run, work, entry_of(args, work, place)) : -1;
        shared.cells[threadIdx.x] = cell;
        visible = cell >= 0;
    }
    return __syncthreads_or(visible);
}

// Elements `first` to `first` + SLICE of rows of n elements into a tile; 0 for all others.
__device__ __noinline__ void load_tile(Tile& tile, const int* cells, int type, const char* base,
                                       i64_t stride, int first, int n, bool vectors) {
    constexpr int GROUPS = SLICE / 8;
#pragma unroll 2
    for (int j = threadIdx.x; j < TILE * GROUPS; j += THREADS) {
        const int c = j / GROUPS, i = j % GROUPS * 8;
        float v[8] = {};
        if (cells[c] >= 0 && first + i < n) {
            load_8(type, base + cells[c] * stride, first + i, n, vectors, v);
        }
        float4* to = (float4*)&tile[c][i];
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
}

__device__ void load_queries(Shared& shared, int first, int n) {
    for (int j = threadIdx.x; j < ROWS * SLICE; j += THREADS) {
        const int r = j / SLICE, i = j % SLICE;
        const float* query = shared.queries[r];
        shared.q[r][i] = query && first + i < n ? query[first + i] : 0.0f;
    }
}

// The scores of a tile. A thread has one cell and some of the rows.
__device__ void score_tile(const Args& args, const Run& run, const Work& work, int place,
                           Shared& shared) {
    constexpr int OWN = ROWS * TILE / THREADS;  // rows of a thread
    const int cell = threadIdx.x % TILE, first_row = threadIdx.x / TILE * OWN;
    const int d = args.k.ne[0].at(run);
    const char* base = base_of(args, args.k, work);
    float dots[OWN] = {};
    for (int slice = 0; slice < d; slice += SLICE) {
        __syncthreads();  // the tile is no longer read
        load_tile(shared.tile, shared.cells, args.k_type, base, args.k.nb[1], slice, d,
                  args.k_vectors);
        load_queries(shared, slice, d);
        __syncthreads();
        const int n = min(SLICE, d - slice);  // the rest are zeros
#pragma unroll 2
        for (int i = 0; i < n; i += 4) {
            const float4 k = *(const float4*)&shared.tile[cell][i];
#pragma unroll
            for (int r = 0; r < OWN; ++r) {
                const float4 q = *(const float4*)&shared.q[first_row + r][i];
                dots[r] = fmaf(q.x, k.x, dots[r]);
                dots[r] = fmaf(q.y, k.y, dots[r]);
                dots[r] = fmaf(q.z, k.z, dots[r]);
                dots[r] = fmaf(q.w, k.w, dots[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
        const int row = first_row + r;
        float score = dots[r] * args.scale;
        if (args.logit_softcap != 0.0f) {
            score = tanhf(score / args.logit_softcap) * args.logit_softcap;
        }
        const bool exists = shared.cells[cell] >= 0;
        shared.scores[cell][row] =
            exists ? shared.rows.score(row, place + cell, score) : minus_infinity();
    }
}

// Scores to weights, a warp for each row.
__device__ void weigh_tile(Shared& shared) {
    const int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < ROWS; r += WARPS) {
        const float a = shared.scores[lane][r], b = shared.scores[lane + 32][r];
        const Softmax before = shared.chunk[r];
        const float largest = fmaxf(before.largest, warp_max(fmaxf(a, b)));
        const float reference = reference_of(largest);
        const float p = weight_of(a, reference), p2 = weight_of(b, reference);
        const float total = warp_sum(p + p2);
        shared.scores[lane][r] = p;
        shared.scores[lane + 32][r] = p2;
        __syncwarp();  // all lanes have read the state
        if (lane == 0) {
            const float rescale = weight_of(before.largest, reference);
            shared.rescale[r] = rescale;
            shared.chunk[r] = {largest, fmaf(before.total, rescale, total)};
        }
    }
}

// Weighted sums of V. A thread has a column of each slice, for all rows.
template <int SLICES>
__device__ void add_values(const Args& args, const Work& work, Shared& shared,
                           float (&sums)[SLICES][ROWS]) {
    const char* base = base_of(args, args.v, work);
#pragma unroll
    for (int s = 0; s < SLICES; ++s) {
        const int first = work.first + s * SLICE;
        if (first >= work.dv) break;
        __syncthreads();  // the tile is no longer read
        load_tile(shared.tile, shared.cells, args.v_type, base, args.v.nb[1], first, work.dv,
                  args.v_vectors);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sums[s][r] *= shared.rescale[r];
#pragma unroll 4
        for (int c = 0; c < TILE; ++c) {
            const float v = shared.tile[c][threadIdx.x];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[s][r] = fmaf(shared.scores[c][r], v, sums[s][r]);
        }
    }
}

// The state of a chunk: stored, or folded into that of the chunks before.
template <int SLICES>
__device__ void finish_chunk(const Work& work, const Partials& partials, int chunk,
                             Shared& shared, const float (&sums)[SLICES][ROWS],
                             float (&total)[SLICES][ROWS]) {
    const Task& task = work.task;
    const int slot = work.slot_of(chunk);
    const int thread = threadIdx.x;
    __syncthreads();
    if (task.slot < 0) {
        if (thread < ROWS) shared.folds[thread] = fold(shared.all[thread], shared.chunk[thread]);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const Fold f = shared.folds[r];
#pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                total[s][r] = fmaf(sums[s][r], f.added_factor, total[s][r] * f.factor);
            }
        }
        return;
    }
    if (thread < ROWS && work.computes(thread) && blockIdx.z == 0) {
        const BlockRow row = work.rows.at(thread);
        partials.softmax[partials.index(slot + row.i, row.head)] = shared.chunk[thread];
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (!work.computes(r)) continue;
        const BlockRow row = work.rows.at(r);
        float* to = partials.sums + partials.index(slot + row.i, row.head) * work.dv;
#pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            const int column = work.first + s * SLICE + thread;
            if (column < work.dv) to[column] = sums[s][r];
        }
    }
}

// The results of rows whose chunks a block has walked.
template <int SLICES>
__device__ void store_rows(const Args& args, const Work& work, Shared& shared,
                           const float (&total)[SLICES][ROWS]) {
    __syncthreads();  // where there is no chunk, the states are those set at first
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (!work.computes(r)) continue;
        const BlockRow row = work.rows.at(r);
        const float factor = final_factor(shared.all[r], sink_of(args, row.head), args.unit);
        float* y = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
#pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            const int column = work.first + s * SLICE + (int)threadIdx.x;
            if (column < work.dv) y[column] = final_value(total[s][r], factor);
        }
    }
}

// Attends rows of a task to chunks of its cells. Returns whether a sum is not finite.
template <int SLICES>
__device__ bool attend(const Args& args, const Run& run, const Plan& plan, const Item& item,
                       int only, Shared& shared) {
    const Task& task = plan.tasks[item.task];
    const int first = blockIdx.z * SLICES * SLICE;
    const Work work = {task,  rows_of_block(args, run, task, ROWS), only,
                       first, args.v.ne[0].at(run),                 cells_of(args, run)};
    const Partials partials(args, run);
    __syncthreads();  // another item may still use the shared memory
    shared.rows.set(args, run, plan, work, shared.queries);
    if (threadIdx.x < ROWS) shared.all[threadIdx.x] = empty_softmax();
    float total[SLICES][ROWS] = {};
    bool finite = true;
    for (int chunk = item.chunk; chunk < item.end_chunk; ++chunk) {
        if (threadIdx.x < ROWS) shared.chunk[threadIdx.x] = empty_softmax();
        __syncthreads();
        float sums[SLICES][ROWS] = {};
        const int end = (int)min((i64_t)task.end, chunk_begin(chunk + 1));
        for (i64_t place = chunk_begin(chunk); place < end; place += TILE) {
            if (!list_cells(args, run, work, (int)place, shared)) continue;
            score_tile(args, run, work, (int)place, shared);
            __syncthreads();
            weigh_tile(shared);
            add_values(args, work, shared, sums);
        }
#pragma unroll
        for (int s = 0; s < SLICES; ++s) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) finite = finite && isfinite(sums[s][r]);
        }
        finish_chunk(work, partials, chunk, shared, sums, total);
    }
    if (task.slot < 0) store_rows(args, work, shared, total);
    return !__syncthreads_and(finite);
}

// Where V is not finite, rows that do not see the cell get 0 * inf: then each row is computed alone.
template <int SLICES>
__device__ void attend_all(const Args& args, const Run& run) {
    __shared__ __align__(16) Shared shared;  // read by four floats at a time
    const Plan plan(args);
    const int n_items = plan.header->n_items;
    for (int i = blockIdx.x; i < n_items; i += gridDim.x) {
        const Item item = plan.items[n_items - 1 - i];
        for (int only = -1; only < ROWS; ++only) {
            const bool wrong = attend<SLICES>(args, run, plan, item, only, shared);
            if (only < 0 && !wrong) break;
        }
        combine_if_last<ROWS, WARPS>(args, run, plan, item.task);
    }
}

KERNEL_BLOCKS(attention_1, Args, THREADS, 2) { attend_all<1>(args, run); }
KERNEL_BLOCKS(attention_4, Args, THREADS, 2) { attend_all<4>(args, run); }
