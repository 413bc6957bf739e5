// Attention on tensor cores: q, K, V and weights are f16, sums f32.
//
//   q [D, n_q, Hq, S] f32, k [D, ..] and v [Dv, ..] f16 or quantised; see attention.cuh for the order of
//   sums
//   attention_mma   grid (items, heads of K x blocks of heads)
//
// Defines: HEAD, the most elements of a head of K and of V; PADDED, whether they may have fewer;
// CONVERTED, whether rows of K and V are not plain f16 that is aligned to 16 bytes.
//
// A block has 64 rows, heads of q that share a head of K, of one or more queries: 16 rows for each warp. It
// takes tiles of cells in order, of which the next one is copied to shared memory meanwhile:
//
//   scores  [16, cells]   q k^T: D / 16 products of matrices for every 8 cells
//   weights               p = 2^14 e^(s - m), in registers, as f16: scores' layout is that of a left matrix
//   sums    [16, Dv]      rescaled if a maximum grew, + p v; and + p 1, the sums of weights
//
// q is scaled by a power of 2 for each row, so that no number overflows and rounding is relative to the
// largest element; p by 2^14, so that weights down to 2^-28 have all bits of an f16.
//
// A cell's rows of K and V, 2 (D + Dv) bytes, are read once for the 64 rows of a block. A warp multiplies
// for 16 rows if it has any: little beside the memory's time where one query decodes. For prompts, it is
// ldmatrix that takes longest: it brings those bytes to every warp, for 16 rows each.
#include "attention_block.cuh"
#include "attention_rows.cuh"
#include "mma.cuh"

constexpr int THREADS = 128;
constexpr int WARP_ROWS = 16;
constexpr int ROWS = THREADS / 32 * WARP_ROWS;
constexpr int STAGES = 2;
constexpr int UNIT_LOG2 = 14;        // of weights
constexpr u32_t ONES = 0x3c003c00u;  // two 1 as f16

__device__ inline u32_t pack_halves(float low, float high) {
#ifdef GGMLPY_EMULATED
    return float_to_half(low) | (u32_t)float_to_half(high) << 16;
#else
    u32_t bits;
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#endif
}

// 2^x by the instruction alone: what is below 2^-126 is 0.
__device__ inline float power_of_2(float x) {
#ifdef GGMLPY_EMULATED
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// c tanh(x / c), wrong by 2^-22 c: c - 2 c / (1 + e^(2 x / c)). `factor` is 2 log2(e) / c.
__device__ inline float capped(float x, float c, float factor) {
    return c - __fdividef(2.0f * c, 1.0f + power_of_2(x * factor));
}

__device__ inline float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 1));
    return fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 2));
}

// Rows of halves in shared memory. The groups of 16 bytes of a row are permuted by its number, so that
// those of one column in eight rows lie in different banks.
template <int N, int COUNT>
struct Rows {
    u16_t halves[COUNT][N];

    __device__ u16_t* at(int row, int column) {
        return &halves[row][(column / 8 ^ row % 8) * 8 + column % 8];
    }
    __device__ const u16_t* at(int row, int column) const {
        return const_cast<Rows*>(this)->at(row, column);
    }
};

// Heads of up to N elements, tiles of so many cells; see the defines.
template <int N_, int CELLS_, bool EXACT_, bool CONVERTS_>
struct Size {
    static constexpr int N = N_, CELLS = CELLS_;
    static constexpr bool EXACT = EXACT_, CONVERTS = CONVERTS_;
    static constexpr bool HOLDS_Q = N <= 128;  // in registers, else in shared memory

    struct Shared {
        Rows<N, CELLS> k[STAGES], v[STAGES];
        Rows<N, HOLDS_Q ? 1 : ROWS> q;
        int cells[STAGES][CELLS];  // -1 for those that no row sees
        RowTable<ROWS> rows;
        float scales[ROWS];        // of scores: the op's, over that of q
        Softmax all[ROWS];         // of the chunks before
        Work work;
    };
};

// A value of which nothing is computed ahead of here: addresses that follow from it would take more
// registers than there are.
__device__ inline int opaque(int v) {
#ifndef GGMLPY_EMULATED
    asm volatile("" : "+r"(v));
#endif
    return v;
}

// The rows of a lane: g and g + 8 of its warp's.
__device__ inline int row_of_lane(int half) {
    return threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / 4 + half * 8;
}

// A power of 2 that brings values of up to `largest` near the largest f16: below 2^15.
__device__ inline float scale_for(float largest) {
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    if (largest == 0.0f || exponent > 127) return 1.0f;
    return __uint_as_float((u32_t)(14 - max(exponent, -100) + 127) << 23);
}

// q as left matrices of 16 elements each.
template <class S>
struct Queries {
    u32_t held[S::HOLDS_Q ? S::N / 16 : 1][4];

    __device__ void load(typename S::Shared& shared, float scale, int d) {
        const int column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row_of_lane(half);
            const float* row = shared.rows.queries[r];
            float x[S::N / 8][2] = {};
            float largest = 0.0f;
            if (row) {
#pragma unroll
                for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int i = j * 8 + column + e;
                        if (S::EXACT || i < d) x[j][e] = row[i];
                        largest = fmaxf(largest, fabsf(x[j][e]));
                    }
                }
            }
            const float factor = scale_for(quad_max(largest));
            if (column == 0) shared.scales[r] = scale / factor;
#pragma unroll
            for (int j = 0; j < S::N / 8; ++j) {
                const u32_t halves = pack_halves(x[j][0] * factor, x[j][1] * factor);
                if (S::HOLDS_Q) {
                    held[j / 2][j % 2 * 2 + half] = halves;
                } else {
                    *(u32_t*)shared.q.at(r, j * 8 + column) = halves;
                }
            }
        }
        __syncwarp();
    }

    // Elements 16 i to 16 i + 15 of the warp's rows.
    __device__ void get(const typename S::Shared& shared, int i, u32_t (&a)[4]) const {
        if (S::HOLDS_Q) {
#pragma unroll
            for (int j = 0; j < 4; ++j) a[j] = held[i][j];
        } else {
            const int lane = opaque(threadIdx.x) % 32, row = opaque(threadIdx.x) / 32 * WARP_ROWS + lane % 16;
            ldmatrix_x4(a, shared.q.at(row, i * 16 + lane / 16 * 8));
        }
    }
};

// A tile of K and V on its way to shared memory. Rows of cells that no row sees, and what is past the
// end of rows up to a multiple of 16, are 0. A thread has a column of 16 bytes.
template <class S>
__device__ void copy_tile(const Args& args, typename S::Shared& shared, int stage, int d, int dv) {
    constexpr int COLUMNS = S::N / 8;
    const int thread = opaque(threadIdx.x), column = thread % COLUMNS * 8;
    const char* k = base_of(args, args.k, shared.work) + 2 * column;
    const char* v = base_of(args, args.v, shared.work) + 2 * column;
    const u32_t k_stride = (u32_t)args.k.nb[1], v_stride = (u32_t)args.v.nb[1];
    const bool has_k = S::EXACT || column < (d + 15) / 16 * 16;
    const bool has_v = S::EXACT || column < (dv + 15) / 16 * 16;
#pragma unroll 4
    for (int i = 0; i < S::CELLS * COLUMNS / THREADS; ++i) {
        const int c = i * (THREADS / COLUMNS) + thread / COLUMNS;
        const int cell = shared.cells[stage][c];
        const bool exists = cell >= 0;
        const unsigned long long at = exists ? cell : 0;
        if (has_k) {
            const bool valid = exists && (S::EXACT || column < d);
            copy_async_16_zfill(shared.k[stage].at(c, column), k + at * k_stride, valid);
        }
        if (has_v) {
            const bool valid = exists && (S::EXACT || column < dv);
            copy_async_16_zfill(shared.v[stage].at(c, column), v + at * v_stride, valid);
        }
    }
}

// The same for rows of K or of V of other types, or not aligned to 16 bytes: as f16.
template <class S>
__device__ void convert_rows(Rows<S::N, S::CELLS>& tile, const int* cells, int type,
                             const char* base, i64_t stride, int n, bool vectors) {
    constexpr int COLUMNS = S::N / 8, EACH = S::CELLS * COLUMNS / THREADS;
    constexpr int AT_ONCE = 4;  // groups that a thread waits for together
    const int thread = opaque(threadIdx.x);
    const int column = thread % COLUMNS * 8, first = thread / COLUMNS;
    if (column >= (n + 15) / 16 * 16) return;
#pragma unroll 1
    for (int i = 0; i < EACH; i += AT_ONCE) {
        float v[AT_ONCE][8];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const int cell = cells[(i + j) * (THREADS / COLUMNS) + first];
#pragma unroll
            for (int e = 0; e < 8; ++e) v[j][e] = 0.0f;
            if (cell >= 0 && column < n) load_8(type, base + cell * stride, column, n, vectors, v[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            uint4 halves;
            halves.x = pack_halves(v[j][0], v[j][1]);
            halves.y = pack_halves(v[j][2], v[j][3]);
            halves.z = pack_halves(v[j][4], v[j][5]);
            halves.w = pack_halves(v[j][6], v[j][7]);
            *(uint4*)tile.at((i + j) * (THREADS / COLUMNS) + first, column) = halves;
        }
    }
}

template <class S>
__device__ void load_tile(const Args& args, typename S::Shared& shared, int stage, int d, int dv) {
    if constexpr (S::CONVERTS) {
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {
            const Tensor& x = i == 0 ? args.k : args.v;
            convert_rows<S>(i == 0 ? shared.k[stage] : shared.v[stage], shared.cells[stage],
                            i == 0 ? args.k_type : args.v_type, base_of(args, x, shared.work),
                            x.nb[1], i == 0 ? d : dv, i == 0 ? args.k_vectors : args.v_vectors);
        }
    } else {
        copy_tile<S>(args, shared, stage, d, dv);
    }
}

// s[j] is q k^T of cells 8 j to 8 j + 7.
template <class S>
__device__ void multiply_keys(const typename S::Shared& shared, int stage, const Queries<S>& q, int d,
                              float (&s)[S::CELLS / 8][4]) {
    const int lane = opaque(threadIdx.x % 32);
    const int cell = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
    constexpr int AT_ONCE = S::HOLDS_Q ? S::N / 16 : 2;
#pragma unroll AT_ONCE
    for (int i = 0; i < S::N / 16; ++i) {
        if (!S::EXACT && i * 16 >= d) break;
        u32_t a[4];
        q.get(shared, i, a);
#pragma unroll
        for (int j = 0; j < S::CELLS / 16; ++j) {
            u32_t b[4];
            ldmatrix_x4(b, shared.k[stage].at(j * 16 + cell, i * 16 + column));
            mma_f16(s[2 * j], a, {b[0], b[1]});
            mma_f16(s[2 * j + 1], a, {b[2], b[3]});
        }
    }
}

// What a warp has of a chunk.
template <class S>
struct Sums {
    float v[S::N / 8][4];  // weighted sums, of 8 columns each
    float weights[4];      // the same number in every column
    float largest[2];

    __device__ void clear() {
#pragma unroll
        for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) v[j][e] = 0.0f;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) weights[e] = 0.0f;
        largest[0] = largest[1] = minus_infinity();
    }
};

// Scales and caps the scores of a row: entry `at` and so on of the n that it sees; -inf for others.
template <class S>
__device__ void finish_scores(const Args& args, int half, float scale, int at, int n,
                              float (&s)[S::CELLS / 8][4]) {
    const float cap = args.logit_softcap;
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
        s[j][2 * half] *= scale;
        s[j][2 * half + 1] *= scale;
    }
    if (cap != 0.0f) {
        const float factor = 2.0f * LOG2_E / cap;
#pragma unroll
        for (int j = 0; j < S::CELLS / 8; ++j) {
            s[j][2 * half] = capped(s[j][2 * half], cap, factor);
            s[j][2 * half + 1] = capped(s[j][2 * half + 1], cap, factor);
        }
    }
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const bool seen = (u32_t)(at + j * 8 + e) < (u32_t)n;
            s[j][2 * half + e] = seen ? s[j][2 * half + e] : minus_infinity();
        }
    }
}

// Adds the mask of a row.
template <class S>
__device__ void add_mask(const u16_t* mask, float slope, int half, int at, int n,
                         float (&s)[S::CELLS / 8][4]) {
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int i = at + j * 8 + e;
            if ((u32_t)i >= (u32_t)n) continue;
            float& score = s[j][2 * half + e];
            const u16_t bias = mask[i];
            const bool hidden = bias == HALF_MINUS_INFINITY;
            score = hidden ? minus_infinity() : fmaf(half_to_float(bias), slope, score);
        }
    }
}

// Finishes scores, and makes weights of them; rescales what the chunk has.
template <class S>
__device__ void weigh(const Args& args, const typename S::Shared& shared, int place,
                      float (&s)[S::CELLS / 8][4], Sums<S>& sums) {
    const RowTable<ROWS>& table = shared.rows;
    const int column = opaque(threadIdx.x) % 4 * 2;
    float largest[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_lane(half), at = place + column - table.first[row];
        const int n = table.end[row] - table.first[row];
        finish_scores<S>(args, half, shared.scales[row], at, n, s);
        if (const u16_t* mask = table.masks[row]) {
            add_mask<S>(mask, table.slopes[row], half, at, n, s);
        }
        largest[half] = minus_infinity();
#pragma unroll
        for (int j = 0; j < S::CELLS / 8; ++j) {
            largest[half] = fmaxf(largest[half], fmaxf(s[j][2 * half], s[j][2 * half + 1]));
        }
    }
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float before = sums.largest[half];
        sums.largest[half] = fmaxf(before, quad_max(largest[half]));
        const float reference = reference_of(sums.largest[half]);
        rescale[half] = weight_of(before, reference);
#pragma unroll
        for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
                s[j][e] = power_of_2(fmaf(s[j][e] - reference, LOG2_E, (float)UNIT_LOG2));
            }
        }
    }
    if (!__any_sync(ALL_LANES, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
    for (int e = 0; e < 4; ++e) sums.weights[e] *= rescale[e / 2];
#pragma unroll
    for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.v[j][e] *= rescale[e / 2];
    }
}

// Adds weights times rows of V, and the weights themselves.
template <class S>
__device__ void multiply_values(const Rows<S::N, S::CELLS>& v, const float (&p)[S::CELLS / 8][4],
                                int dv, Sums<S>& sums) {
    const int lane = opaque(threadIdx.x % 32);
    const int cell = lane % 16, column = lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < S::CELLS / 16; ++i) {
        const u32_t a[4] = {
            pack_halves(p[2 * i][0], p[2 * i][1]), pack_halves(p[2 * i][2], p[2 * i][3]),
            pack_halves(p[2 * i + 1][0], p[2 * i + 1][1]),
            pack_halves(p[2 * i + 1][2], p[2 * i + 1][3])};
        mma_f16(sums.weights, a, {ONES, ONES});
#pragma unroll
        for (int j = 0; j < S::N / 16; ++j) {
            if (!S::EXACT && j * 16 >= dv) break;
            u32_t b[4];
            ldmatrix_x4_trans(b, v.at(i * 16 + cell, j * 16 + column));
            mma_f16(sums.v[2 * j], a, {b[0], b[1]});
            mma_f16(sums.v[2 * j + 1], a, {b[2], b[3]});
        }
    }
}

// The state of a chunk: stored, or folded into that of the chunks before, whose sums lie in y. Returns
// whether all sums are finite.
template <class S>
__device__ bool finish_chunk(const Args& args, const Run& run, typename S::Shared& shared,
                             const Item& item, int chunk, const Sums<S>& sums) {
    const Work& work = shared.work;
    const Partials partials(args, run);
    const int column = threadIdx.x % 4 * 2;
    const bool stores = work.task.slot >= 0;
    const bool is_first = stores || chunk == item.chunk;
    const bool is_last = !stores && chunk + 1 == item.end_chunk;
    bool finite = true;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        const int r = row_of_lane(half);
        const Softmax softmax = {half ? sums.largest[1] : sums.largest[0],
                                 half ? sums.weights[2] : sums.weights[0]};
        Softmax all = shared.all[r];
        Fold f = fold(all, softmax);
        __syncwarp();  // all lanes of the row have read it
        if (column == 0) shared.all[r] = all;
        if (!work.computes(r)) continue;
        const BlockRow row = work.rows.at(r);
        const float factor = final_factor(all, sink_of(args, row.head), args.unit);
        float* to = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
        if (stores) {
            const i64_t at = partials.index(work.slot_of(chunk) + row.i, row.head);
            to = partials.sums + at * work.dv;
            if (column == 0) partials.softmax[at] = softmax;
            f = {0.0f, 1.0f};
        }
#pragma unroll
        for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int i = j * 8 + column + e;
                if (!S::EXACT && i >= work.dv) continue;
                const float added = half ? sums.v[j][2 + e] : sums.v[j][e];
                const float before = is_first ? 0.0f : to[i];
                const float sum = fmaf(added, f.added_factor, before * f.factor);
                finite = finite && isfinite(sum);
                to[i] = is_last ? final_value(sum, factor) : sum;
            }
        }
    }
    return finite;
}

// Rows of a task without any cell.
__device__ void store_zeros(const Args& args, const Work& work) {
    for (int r = 0; r < work.rows.count(); ++r) {
        const BlockRow row = work.rows.at(r);
        float* y = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
        for (int i = threadIdx.x; i < work.dv; i += THREADS) y[i] = 0.0f;
    }
}

// Attends rows of a task to chunks of its cells. Returns whether a sum is not finite.
template <class S>
__device__ bool attend(const Args& args, const Run& run, const Plan& plan, const Item& item, int only,
                       typename S::Shared& shared) {
    const int d = args.k.ne[0].at(run), dv = args.v.ne[0].at(run);
    __syncthreads();  // another item may still use the shared memory
    if (threadIdx.x == 0) {
        const Task& task = plan.tasks[item.task];
        shared.work = {task, rows_of_block(args, run, task, ROWS), only, 0, dv};
    }
    __syncthreads();
    const Work& work = shared.work;
    if (work.task.n_chunks == 0) {
        store_zeros(args, work);
        return false;
    }
    shared.rows.set(args, run, plan, work);
    if (threadIdx.x < ROWS) shared.all[threadIdx.x] = empty_softmax();
    __syncthreads();
    Queries<S> q;
    q.load(shared, args.scale, d);

    const int begin = max((int)chunk_begin(item.chunk), work.task.first / S::CELLS * S::CELLS);
    const int end = (int)min((i64_t)work.task.end, chunk_begin(item.end_chunk));
    const int n_tiles = (end - begin + S::CELLS - 1) / S::CELLS;
    const bool has_rows = row_of_lane(0) / WARP_ROWS * WARP_ROWS < work.rows.count();

    // In a turn, a tile is copied, the one before it is computed, and the cells of the next are found.
    Sums<S> sums;
    sums.clear();
    bool finite = true, was_copied = false, visible = false;
    int chunk = item.chunk;
#pragma unroll 1
    for (int tile = -1; tile <= n_tiles; ++tile) {
        copy_async_wait<0>();
        const bool copies = __syncthreads_or(visible);
        if (copies) load_tile<S>(args, shared, tile % STAGES, d, dv);
        copy_async_commit();

        const int thread = (int)threadIdx.x - (THREADS - S::CELLS);  // the last ones: they may be idle
        const int next = begin + (tile + 1) * S::CELLS + thread;
        visible = thread >= 0 && tile + 1 < n_tiles && shared.rows.any_sees(args, run, work, next);
        int cell = visible ? entry_of(args, work, next) : -1;

        const int place = begin + (tile - 1) * S::CELLS;
        if (was_copied && has_rows) {
            const int stage = (tile - 1) % STAGES;
            float s[S::CELLS / 8][4] = {};
            multiply_keys<S>(shared, stage, q, d, s);
            weigh<S>(args, shared, place, s, sums);
            multiply_values<S>(shared.v[stage], s, dv, sums);
        }
        was_copied = copies;
        if (visible) cell = existing(args, run, cell);
        visible = cell >= 0;
        if (thread >= 0) shared.cells[(tile + 1) % STAGES][thread] = cell;

        if (tile > 0 && (place + S::CELLS >= end || place + S::CELLS == chunk_begin(chunk + 1))) {
            finite &= finish_chunk<S>(args, run, shared, item, chunk, sums);
            sums.clear();
            ++chunk;
        }
    }
    return !__syncthreads_and(finite);
}

// Where V is not finite, rows that do not see the cell get 0 * inf: then each row is computed alone.
template <class S>
__device__ void attend_all(const Args& args, const Run& run) {
    DYNAMIC_SHARED(typename S::Shared, shared);
    const Plan plan(args);
    const int n_items = plan.header->n_items;
    for (int i = blockIdx.x; i < n_items; i += gridDim.x) {
        const Item item = plan.items[n_items - 1 - i];
#pragma unroll 1
        for (int only = -1; only < ROWS; ++only) {
            const bool wrong = attend<S>(args, run, plan, item, only, *shared);
            if (only < 0 && !wrong) break;
        }
        combine_if_last<ROWS, THREADS / 32>(args, run, plan, item.task);
    }
}

typedef Size<HEAD, HEAD <= 128 ? 64 : 32, !PADDED, CONVERTED> Defined;
KERNEL_BLOCKS(attention_mma, Args, THREADS, HEAD <= 64 ? 3 : 2) { attend_all<Defined>(args, run); }
