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
#include "attention_block.cuh"
#include "attention_rows.cuh"
#include "attention_tiles.cuh"
#include "mma.cuh"

constexpr int STAGES = 2;
constexpr int UNIT_LOG2 = 14;        // of weights
constexpr u32_t ONES = 0x3c003c00u;  // two 1 as f16

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

// What the rows of a warp see: places of `any` some of them, of `all` every one that is computed.
struct Span4 {
    int any_first, any_end;
    int all_first, all_end;

    __device__ bool sees_some(int place, int n) const { return place < any_end && place + n > any_first; }
    __device__ bool sees_all(int place, int n) const { return place >= all_first && place + n <= all_end; }
};

// Heads of up to N elements, tiles of so many cells; see the defines.
template <int N_, int CELLS_, bool EXACT_, bool CONVERTS_, int TILES_, int GROUPS_>
struct Size {
    static constexpr int N = N_, CELLS = CELLS_, TILES = TILES_, GROUPS = GROUPS_;
    static constexpr bool EXACT = EXACT_, CONVERTS = CONVERTS_;
    static constexpr bool HOLDS_Q = N * TILES <= 128;  // in registers, else in shared memory
    static constexpr int THREADS = 128, WARPS = THREADS / 32;  // of a group
    static constexpr int WARP_ROWS = 16 * TILES, ROWS = WARPS * WARP_ROWS;
    static constexpr int CELL_WARPS = CELLS / 32;  // of a group, the last ones, find cells

    // What a group has.
    struct Tiles {
        Rows<N, CELLS> k[STAGES], v[STAGES];
    };

    struct Shared {
        Tiles tiles[GROUPS];
        Rows<N, HOLDS_Q ? 1 : ROWS> q;
        int cells[GROUPS][STAGES][CELLS];  // -1 for those that no row sees
        int n_cells[GROUPS][STAGES][CELL_WARPS];  // that some row sees
        int folded[2];             // the chunk that is folded next, in even turns and in others
        RowTable<ROWS> rows;
        float scales[ROWS];        // of scores: the op's, over that of q
        union {
            const float* queries[ROWS];
            Softmax all[ROWS];     // of the chunks before
        };
        Span4 spans[GROUPS * WARPS];
        Work work;
        Bases bases;
    };

    __device__ static int group() { return GROUPS > 1 ? threadIdx.x / THREADS : 0; }
    __device__ static int thread() { return GROUPS > 1 ? threadIdx.x % THREADS : threadIdx.x; }
    // The first row of a warp.
    __device__ static int row_of_warp() { return thread() / 32 * WARP_ROWS; }
    // The rows of a lane: g and g + 8 of each tile of its warp's.
    __device__ static int row_of_lane(int tile, int half) {
        return row_of_warp() + tile * 16 + half * 8 + threadIdx.x % 32 / 4;
    }
};

// A power of 2 that brings values of up to `largest` near the largest f16: below 2^15. And where the
// op's scale is small (0 gives 0), less: scores are rounded all the same.
__device__ inline float scale_for(float largest, float scale) {
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    const u32_t most = __float_as_uint(fabsf(scale) * 0x1p60f) & 0x7f800000u;
    if (largest == 0.0f || exponent > 127) return fminf(1.0f, __uint_as_float(most));
    const u32_t power = (u32_t)(14 - max(exponent, -100) + 127) << 23;
    return __uint_as_float(min(power, most));
}

// q as left matrices of 16 elements each.
template <class S>
struct Queries {
    u32_t held[S::HOLDS_Q ? S::N / 16 : 1][S::TILES][4];

    __device__ void load(const Args& args, typename S::Shared& shared, int d) {
        constexpr int AT_ONCE = S::HOLDS_Q ? 2 * S::TILES : 1;
#pragma unroll AT_ONCE
        for (int i = 0; i < 2 * S::TILES; ++i) load_row(args, shared, i / 2, i % 2, d);
    }

    __device__ void load_row(const Args& args, typename S::Shared& shared, int tile, int half, int d) {
        const int column = opaque(threadIdx.x) % 4u * 2, r = S::row_of_lane(tile, half);
        const float* row = shared.queries[r];
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
        // Scores grow with what they stand for, whatever the sign of the op's scale.
        const float power = scale_for(quad_max(largest), args.scale);
        const float factor = args.scale < 0.0f ? -power : power;
        if (column == 0 && S::group() == 0) {
            shared.scales[r] = power == 0.0f ? 1.0f : fabsf(args.scale) / power;
        }
#pragma unroll
        for (int j = 0; j < S::N / 8; ++j) {
            const u32_t halves = pack_halves(x[j][0] * factor, x[j][1] * factor);
            if (S::HOLDS_Q) {
                held[j / 2][tile][j % 2 * 2 + half] = halves;
            } else if (S::group() == 0) {
                *(u32_t*)shared.q.at(r, j * 8 + column) = halves;
            }
        }
    }

    // Where a lane's rows of the first tile are.
    __device__ SharedAddress address(typename S::Shared& shared) const {
        if (S::HOLDS_Q) return to_shared(shared.q.at(0, 0));
        const u32_t thread = opaque(S::thread()), lane = thread % 32;
        const int row = thread / 32 * S::WARP_ROWS + lane % 16;
        return to_shared(shared.q.at(row, lane / 16 * 8));
    }

    // Elements 16 i to 16 i + 15 of the warp's rows.
    __device__ void get(SharedAddress at, int i, u32_t (&a)[S::TILES][4]) const {
#pragma unroll
        for (int tile = 0; tile < S::TILES; ++tile) {
            if (S::HOLDS_Q) {
#pragma unroll
                for (int j = 0; j < 4; ++j) a[tile][j] = held[i][tile][j];
            } else {
                ldmatrix_x4(a[tile], column_16(at, i) + tile * 16 * 2 * S::N);
            }
        }
    }
};

template <class S>
struct Scores {
    float v[S::TILES][S::CELLS / 8][4];  // of 8 cells each
};

// Adds q k^T.
template <class S>
__device__ void multiply_keys(typename S::Shared& shared, Rows<S::N, S::CELLS>& tile_k,
                              const Queries<S>& q, int d, Scores<S>& s) {
    const u32_t lane = opaque(threadIdx.x) % 32u;
    const SharedAddress k = to_shared(tile_k.at(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
    const SharedAddress rows = q.address(shared);
    constexpr int AT_ONCE = S::N <= 128 ? S::N / 16 : 2;
#pragma unroll AT_ONCE
    for (int i = 0; i < S::N / 16; ++i) {
        if (!S::EXACT && i * 16 >= d) break;
        u32_t a[S::TILES][4];
        q.get(rows, i, a);
#pragma unroll
        for (int j = 0; j < S::CELLS / 16; ++j) {
            u32_t b[4];
            ldmatrix_x4(b, column_16(k, i) + j * 16 * 2 * S::N);
#pragma unroll
            for (int tile = 0; tile < S::TILES; ++tile) {
                mma_f16(s.v[tile][2 * j], a[tile], {b[0], b[1]});
                mma_f16(s.v[tile][2 * j + 1], a[tile], {b[2], b[3]});
            }
        }
    }
}

// What a warp has of a chunk.
template <class S>
struct Sums {
    float v[S::TILES][S::N / 8][4];  // weighted sums, of 8 columns each
    float weights[S::TILES][4];      // the same number in every column
    float largest[S::TILES][2];

    __device__ void clear() {
#pragma unroll
        for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
            for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) v[tile][j][e] = 0.0f;
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) weights[tile][e] = 0.0f;
            largest[tile][0] = largest[tile][1] = minus_infinity();
        }
    }
};

// What 1 is in finished scores of a row, which keep the scale of q k^T unless they are capped.
template <class S>
__device__ float unit_of(const Args& args, const typename S::Shared& shared, int row) {
    return args.logit_softcap != 0.0f ? 1.0f : shared.scales[row];
}

// Caps the scores of a row of a lane.
template <class S>
__device__ void cap_scores(float cap, float scale, int half, float (&s)[S::CELLS / 8][4]) {
    const float factor = 2.0f * LOG2_E / cap;
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) s[j][e] = capped(s[j][e] * scale, cap, factor);
    }
}

// Adds the mask of a row, and hides what the row does not see. A mask of 0 leaves a score as it is.
template <class S>
__device__ void hide_scores(const Args& args, const typename S::Shared& shared, int row, int place,
                            int half, float (&s)[S::CELLS / 8][4]) {
    const RowTable<S::ROWS>& table = shared.rows;
    const int at = place + (int)threadIdx.x % 4 * 2 - table.first[row];
    const int n = table.end[row] - table.first[row];
    if (const u16_t* mask = table.masks[row]) {
        const float slope = table.slopes[row] / unit_of<S>(args, shared, row);
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
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const bool seen = (u32_t)(at + j * 8 + e) < (u32_t)n;
            s[j][2 * half + e] = seen ? s[j][2 * half + e] : minus_infinity();
        }
    }
}

// Makes weights of the finished scores of a row of a lane. Returns what the sums of the chunk are to be
// multiplied by.
template <class S>
__device__ float weigh_row(float exponent, int half, float (&s)[S::CELLS / 8][4], float& largest) {
    float found = s[0][2 * half];
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
        found = fmaxf(found, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
    }
    const float before = largest;
    largest = fmaxf(before, quad_max(found));
    const float reference = reference_of(largest);
    const float shift = fmaf(-reference, exponent, (float)UNIT_LOG2);
#pragma unroll
    for (int j = 0; j < S::CELLS / 8; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[j][e] = power_of_2(fmaf(s[j][e], exponent, shift));
        }
    }
    return power_of_2((before - reference) * exponent);
}

// Finishes scores, and makes weights of them; rescales what the chunk has.
template <class S>
__device__ void weigh(const Args& args, const typename S::Shared& shared, int place, bool sees_all,
                      Scores<S>& s, Sums<S>& sums) {
    const float cap = args.logit_softcap;
    if (cap != 0.0f || !sees_all) {
#pragma unroll
        for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = S::row_of_lane(tile, half);
                if (cap != 0.0f) cap_scores<S>(cap, shared.scales[row], half, s.v[tile]);
                if (!sees_all) hide_scores<S>(args, shared, row, place, half, s.v[tile]);
            }
        }
    }
    float rescale[S::TILES][2];
    bool grew = false;
#pragma unroll
    for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float exponent = unit_of<S>(args, shared, S::row_of_lane(tile, half)) * LOG2_E;
            rescale[tile][half] = weigh_row<S>(exponent, half, s.v[tile], sums.largest[tile][half]);
            grew = grew || rescale[tile][half] != 1.0f;
        }
    }
    if (!__any_sync(ALL_LANES, grew)) return;
#pragma unroll
    for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.weights[tile][e] *= rescale[tile][e / 2];
#pragma unroll
        for (int j = 0; j < S::N / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums.v[tile][j][e] *= rescale[tile][e / 2];
        }
    }
}

// Adds weights times rows of V, and the weights themselves.
template <class S>
__device__ void multiply_values(Rows<S::N, S::CELLS>& tile_v, const Scores<S>& p, int dv,
                                Sums<S>& sums) {
    const u32_t lane = opaque(threadIdx.x) % 32u;
    const SharedAddress v = to_shared(tile_v.at(lane % 16, lane / 16 * 8));
#pragma unroll
    for (int i = 0; i < S::CELLS / 16; ++i) {
        u32_t a[S::TILES][4];
#pragma unroll
        for (int tile = 0; tile < S::TILES; ++tile) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float(&of_cells)[4] = p.v[tile][2 * i + j / 2];
                a[tile][j] = pack_halves(of_cells[j % 2 * 2], of_cells[j % 2 * 2 + 1]);
            }
            mma_f16(sums.weights[tile], a[tile], {ONES, ONES});
        }
#pragma unroll
        for (int j = 0; j < S::N / 16; ++j) {
            if (!S::EXACT && j * 16 >= dv) break;
            u32_t b[4];
            ldmatrix_x4_trans(b, column_16(v, j) + i * 16 * 2 * S::N);
#pragma unroll
            for (int tile = 0; tile < S::TILES; ++tile) {
                mma_f16(sums.v[tile][2 * j], a[tile], {b[0], b[1]});
                mma_f16(sums.v[tile][2 * j + 1], a[tile], {b[2], b[3]});
            }
        }
    }
}

// Two columns of a row of sums, of which there may be fewer.
template <class S>
__device__ void load_pair(const float* row, int column, int dv, float (&v)[2]) {
    if (S::EXACT) {
        const float2 pair = *(const float2*)(row + column);
        v[0] = pair.x, v[1] = pair.y;
    } else {
        for (int e = 0; e < 2; ++e) v[e] = column + e < dv ? row[column + e] : 0.0f;
    }
}

template <class S>
__device__ void store_pair(float* row, int column, int dv, const float (&v)[2]) {
    if (S::EXACT) {
        *(float2*)(row + column) = {v[0], v[1]};
    } else {
        for (int e = 0; e < 2; ++e) {
            if (column + e < dv) row[column + e] = v[e];
        }
    }
}

// Adds the sums of a row's chunk to those in `to`, and divides the last ones. Returns 0, or NaN where
// one is not finite: at the end, since such a sum stays so.
template <class S>
__device__ float store_sums(float* to, int dv, Fold f, bool is_first, bool is_last, float factor,
                            int half, const float (&sums)[S::N / 8][4]) {
    constexpr int AT_ONCE = S::EXACT ? 8 : 4;  // pairs that a lane waits for together
    const int column = threadIdx.x % 4 * 2;
    float finite = 0.0f;
#pragma unroll
    for (int begin = 0; begin < S::N / 8; begin += AT_ONCE) {
        float v[AT_ONCE][2] = {};
        if (!is_first) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) load_pair<S>(to, (begin + j) * 8 + column, dv, v[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                v[j][e] = fmaf(sums[begin + j][2 * half + e], f.added_factor, v[j][e] * f.factor);
            }
        }
        if (is_last) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    finite = fmaf(v[j][e], 0.0f, finite);
                    v[j][e] = final_value(v[j][e], factor);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) store_pair<S>(to, (begin + j) * 8 + column, dv, v[j]);
    }
    return finite;
}

// The state of a row's chunk: stored, or folded into that of the chunks before, whose sums lie in y.
// Returns whether all sums are finite.
template <class S>
__device__ bool finish_row(const Args& args, const Run& run, typename S::Shared& shared,
                           const Item& item, int chunk, int tile, int half, const Sums<S>& sums) {
    const Work& work = shared.work;
    const int r = S::row_of_lane(tile, half), column = threadIdx.x % 4;
    const float largest = sums.largest[tile][half] * unit_of<S>(args, shared, r);
    const Softmax softmax = {largest, sums.weights[tile][2 * half]};
    Softmax all = shared.all[r];
    const Fold f = fold(all, softmax);
    __syncwarp();  // all lanes of the row have read it
    if (column == 0) shared.all[r] = all;
    if (!work.computes(r)) return true;
    const BlockRow row = work.rows.at(r);
    if (work.task.slot >= 0) {
        const Partials partials(args, run);
        const i64_t at = partials.index(work.slot_of(chunk) + row.i, row.head);
        if (column == 0) partials.softmax[at] = softmax;
        float* to = partials.sums + at * work.dv;
        return store_sums<S>(to, work.dv, {0.0f, 1.0f}, true, true, 1.0f, half, sums.v[tile]) == 0.0f;
    }
    const float factor = final_factor(all, sink_of(args, row.head), args.unit);
    float* to = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
    return store_sums<S>(to, work.dv, f, chunk == item.chunk, chunk + 1 == item.end_chunk, factor, half,
                         sums.v[tile]) == 0.0f;
}

// Rows of a task without any cell.
template <class S>
__device__ void store_zeros(const Args& args, const Work& work) {
    for (int r = 0; r < work.rows.count(); ++r) {
        const BlockRow row = work.rows.at(r);
        float* y = (float*)args.y.at(row.head, work.task.query + row.i, work.task.stream);
        for (int i = threadIdx.x; i < work.dv; i += S::GROUPS * S::THREADS) y[i] = 0.0f;
    }
}

// What the rows of a warp see together. With a mask, nothing is known to be seen by all.
template <class S>
__device__ Span4 span_of_warp(const Args& args, const typename S::Shared& shared) {
    const int lane = threadIdx.x % 32, r = S::row_of_warp() + lane;
    Span4 span = {0x7fffffff, 0, 0, 0x7fffffff};
    if (lane < S::WARP_ROWS && shared.work.computes(r)) {
        const int first = shared.rows.first[r], end = shared.rows.end[r];
        span = {first < end ? first : 0x7fffffff, first < end ? end : 0, first, end};
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        span.any_first = min(span.any_first, __shfl_xor_sync(ALL_LANES, span.any_first, d));
        span.any_end = max(span.any_end, __shfl_xor_sync(ALL_LANES, span.any_end, d));
        span.all_first = max(span.all_first, __shfl_xor_sync(ALL_LANES, span.all_first, d));
        span.all_end = min(span.all_end, __shfl_xor_sync(ALL_LANES, span.all_end, d));
    }
    if (args.mask.data) span.all_end = 0;
    return span;
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
    if (thread < 0 || place < 0 || !shared.rows.any_sees(args, run, shared.work, at)) return {false, -1};
    return {true, entry_of(args, shared.work, at)};
}

template <class S>
__device__ void store_cell(const Args& args, const Run& run, typename S::Shared& shared, Entry entry,
                           int stage) {
    const int thread = S::thread() - (S::THREADS - S::CELLS);
    if (thread < 0) return;
    const int cell = entry.visible ? existing(args, run, entry.cell) : -1;
    shared.cells[S::group()][stage][thread] = cell;
    const u32_t visible = __ballot_sync(ALL_LANES, cell >= 0);
    if (thread % 32 == 0) shared.n_cells[S::group()][stage][thread / 32] = __popc(visible);
}

template <class S>
__device__ int n_cells_of(const typename S::Shared& shared, int stage) {
    int n = 0;
#pragma unroll
    for (int i = 0; i < S::CELL_WARPS; ++i) n += shared.n_cells[S::group()][stage][i];
    return n;
}

// Attends rows of a task to chunks of its cells. Returns whether a sum is not finite.
template <class S>
__device__ bool attend(const Args& args, const Run& run, const Plan& plan, const Item& item, int only,
                       typename S::Shared& shared) {
    const int d = args.k.ne[0].at(run), dv = args.v.ne[0].at(run);
    __syncthreads();  // another item may still use the shared memory
    if (threadIdx.x == 0) {
        const Task& task = plan.tasks[item.task];
        shared.work = {task, rows_of_block(args, run, task, S::ROWS), only, 0, dv};
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
    Span4& span = shared.spans[threadIdx.x / 32];
    const Span4 found = span_of_warp<S>(args, shared);
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
    for (int turn = 0;; ++turn) {
        copy_async_wait<0>();
        __syncthreads();
        const int folded = shared.folded[turn % 2];
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
            if (n_computed && span.sees_some(computed.place, S::CELLS)) {
                const bool sees_all = span.sees_all(computed.place, S::CELLS);
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
#pragma unroll
            for (int i = 0; i < 2 * S::TILES; ++i) {
                finite &= finish_row<S>(args, run, shared, item, folded, i / 2, i % 2, sums);
            }
            sums.clear();
            is_complete = false;
        }
        if ((folded - item.chunk) % S::GROUPS == S::group() && S::thread() == 0) {
            shared.folded[(turn + 1) % 2] = folded + folds;
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
