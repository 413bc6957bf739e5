// Rotary position embedding.
//
//   y[a] = x[a] cos(t_i) - x[b] sin(t_i),  y[b] = x[a] sin(t_i) + x[b] cos(t_i)   for pair i = (a, b)
//
// rope_table makes cosines and sines of all positions, once for all steps with the same parameters:
//
//   table  f32 [2, n_pairs, T]: cos, sin       a thread for a pair and TOKENS tokens
//
// The others move x and y, 8 bytes an element, and the table, which heads of a token share.
#include "elementwise.cuh"
#include "quantize.cuh"

constexpr int TABLE_THREADS = 128;
constexpr int TOKENS = 8;
constexpr int THREADS = 256;

// --- the table -------------------------------------------------------------------------------------

constexpr int TABLE_PAIRS = 256;  // of a launch

// The angle of a pair is that of a position of 1, times the position on the pair's axis, over the
// pair's factor: interpolation and YaRN are linear in the position.
struct TableArgs {
    Span table;
    Tensor pos;  // i32 [axes * T]: those of one axis after those of another
    Tensor freq_factors;
    double angles[TABLE_PAIRS];
    u8_t axes[TABLE_PAIRS];
    int first_pair;
    int n_pairs;  // of all launches
    int n_axes;
    float magnitude;  // of cos and sin
};

// The rest of an angle within half a turn: cosines and sines in f64 are long for large ones.
__device__ inline double within_a_turn(double angle) {
    constexpr double TURN = 6.283185307179586477, TURN_LOW = 2.449293598294706414e-16;
    const double turns = rint(angle / TURN);
    return fma(-turns, TURN_LOW, fma(-turns, TURN, angle));
}

KERNEL(rope_table, TableArgs, TABLE_THREADS) {
    const int i = blockIdx.y * TABLE_THREADS + threadIdx.x;
    const int pair = args.first_pair + i;
    if (i >= TABLE_PAIRS || pair >= args.n_pairs) return;
    double unit = args.angles[i];
    if (args.freq_factors.data) unit /= ((const float*)args.freq_factors.data)[pair];
    const int n_tokens = args.pos.ne[0].at(run) / args.n_axes;
    const char* pos = args.pos.data + (i64_t)args.axes[i] * n_tokens * args.pos.nb[0];
    float2* table = (float2*)args.table.data;
    const int first = blockIdx.x * TOKENS;
    for (int t = first; t < min(first + TOKENS, n_tokens); ++t) {
        const double angle = within_a_turn(unit * *(const int*)(pos + t * args.pos.nb[0]));
        const float c = (float)(cos(angle) * args.magnitude);
        const float s = (float)(sin(angle) * args.magnitude);
        table[(i64_t)t * args.n_pairs + pair] = make_float2(c, s);
    }
}

// --- rotations -------------------------------------------------------------------------------------

// Which elements of a row are pairs: neighbours from n_offs on, or halves of what is rotated. A slot
// of a row is a pair, or an element that is copied as it is.
struct Pairs {
    int n_pairs;
    int n_offs;
    int are_neighbours;

    __device__ int n_slots(int n) const { return n - n_pairs; }

    // What slot `slot` of row x becomes in row y. Both elements are read before one is written: the
    // rows may be the same.
    template <class X, class Y>
    __device__ void rotate(const char* x, char* y, const float2* table, int slot) const {
        if (slot >= n_pairs) {
            const int rest = slot - n_pairs;
            const int i = rest < n_offs ? rest : rest + 2 * n_pairs;
            Y::store(y, i, X::load(x, i));
            return;
        }
        const int first = n_offs + (are_neighbours ? 2 * slot : slot);
        const int second = first + (are_neighbours ? 1 : n_pairs);
        const float2 turned = turn(X::load(x, first), X::load(x, second), table[slot]);
        Y::store(y, first, turned.x);
        Y::store(y, second, turned.y);
    }

    // What element i of row x becomes.
    __device__ float rotated(const float* x, const float2* table, int i) const {
        const int at = i - n_offs;
        if (at < 0 || at >= 2 * n_pairs) return x[i];
        if (are_neighbours) {
            const float2 turned = turn(x[i & ~1], x[i | 1], table[at / 2]);  // n_offs is even
            return at % 2 == 0 ? turned.x : turned.y;
        }
        const int slot = at % n_pairs;
        const float2 turned = turn(x[n_offs + slot], x[n_offs + slot + n_pairs], table[slot]);
        return at < n_pairs ? turned.x : turned.y;
    }

    __device__ static float2 turn(float a, float b, float2 by) {  // cos, sin
        return make_float2(a * by.x - b * by.y, a * by.y + b * by.x);
    }
};

// Division of what mostly fits 32 bits, where it is fast.
__device__ inline i64_t quotient(i64_t a, int b) {
    return (a >> 32) == 0 ? (i64_t)((u32_t)a / (u32_t)b) : a / b;
}

// x, y [D, H, T, S]: slot `i` of all rows.
template <class X>
__device__ inline void rotate_slot(
    const Tensor& y, const Tensor& x, const Span& of_positions, const Pairs& pairs, i64_t i,
    const Run& run
) {
    const int n_slots = pairs.n_slots(x.ne[0].at(run));
    const int n_heads = x.ne[1].at(run), n_tokens = x.ne[2].at(run);
    const i64_t row = quotient(i, n_slots);
    const i64_t plane = quotient(row, n_heads);
    const i64_t i3 = quotient(plane, n_tokens);
    if (i3 >= x.ne[3].at(run)) return;
    const i64_t head = row - plane * n_heads, token = plane - i3 * n_tokens;
    const float2* table = (const float2*)of_positions.data + token * pairs.n_pairs;
    const int slot = (int)(i - row * n_slots);
    pairs.rotate<X, X>(x.at(head, token, i3), y.at(head, token, i3), table, slot);
}

struct Args {
    Tensor y;
    Tensor x;
    Span table;
    Pairs pairs;
};

template <class X>
__device__ inline void rotate_rows(const Args& args, const Run& run) {
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    rotate_slot<X>(args.y, args.x, args.table, args.pairs, i, run);
}

KERNEL(rope_f32, Args, THREADS) { rotate_rows<f32>(args, run); }
KERNEL(rope_f16, Args, THREADS) { rotate_rows<f16>(args, run); }

// --- rotated rows to rows of a cache -------------------------------------------------------------------

// The indices [T] of rows to write.
struct Ids {
    Tensor list;
    int are_i64;
    int unused;

    __device__ i64_t at(int token) const {
        const char* at = list.data + token * list.nb[0];
        return are_i64 ? *(const i64_t*)at : *(const int*)at;
    }
};

// The row of y that a token's is written to, or -1 if it is not: if any index is out of range nothing
// is written, and of several tokens with one index the last one is. All threads call it.
__device__ inline i64_t row_to_set(const Tensor& y, const Ids& ids, int token, const Run& run) {
    const int n_tokens = ids.list.ne[0].at(run), n_rows = y.ne[1].at(run);
    const i64_t own = ids.at(token);
    int skip = 0;
    for (int t = threadIdx.x; t < n_tokens; t += THREADS) {
        const i64_t id = ids.at(t);
        if (id < 0 || id >= n_rows) {
            fail(run, id);
            skip = 1;
        }
        if (t > token && id == own) skip = 1;
    }
    return __syncthreads_or(skip) ? -1 : own;
}

// Keys of a token in a cache.
struct Keys {
    const Tensor& y;  // [D * H, R]
    const Tensor& x;  // [D, H, T] f32
    const Span& table;
    const Pairs& pairs;
    int token;

    __device__ const float2* angles() const {
        return (const float2*)table.data + (i64_t)token * pairs.n_pairs;
    }

    // Slot i of all heads in row `row` of y.
    template <class Y>
    __device__ void store_slot(i64_t row, int i, const Run& run) const {
        const int n = x.ne[0].at(run), n_slots = pairs.n_slots(n);
        const int head = i / n_slots;
        if (head >= x.ne[1].at(run)) return;
        char* to = y.at(row, 0, 0) + (i64_t)head * n * Y::SIZE;
        pairs.rotate<f32, Y>(x.at(head, token, 0), to, angles(), i - head * n_slots);
    }

    // Element i of all heads; a warp for each block of 32.
    __device__ void store_quantized(int type, i64_t row, int i, const Run& run) const {
        const int n = x.ne[0].at(run);
        if (i >= n * x.ne[1].at(run)) return;  // of a whole warp
        const int head = i / n;
        const float v =
            pairs.rotated((const float*)x.at(head, token, 0), angles(), i - head * n);
        quantize_block(type, v, y.at(row, 0, 0) + (i64_t)(i / QUANTIZED_BLOCK) * block_bytes(type));
    }
};

struct SetArgs {
    Tensor y;
    Tensor x;
    Ids ids;
    Span table;
    Pairs pairs;
    int y_type;
};

// y[:, ids[t]] = the heads of token t, one after another: blocks of a token in x, of its slots in y.
template <class Y>
__device__ inline void set_rotated(const SetArgs& args, const Run& run) {
    const Keys keys = {args.y, args.x, args.table, args.pairs, (int)blockIdx.x};
    if (keys.token >= args.x.ne[2].at(run)) return;
    const i64_t row = row_to_set(args.y, args.ids, keys.token, run);
    if (row >= 0) keys.store_slot<Y>(row, blockIdx.y * THREADS + threadIdx.x, run);
}

KERNEL(rope_set_rows_f32, SetArgs, THREADS) { set_rotated<f32>(args, run); }
KERNEL(rope_set_rows_f16, SetArgs, THREADS) { set_rotated<f16>(args, run); }
KERNEL(rope_set_rows_bf16, SetArgs, THREADS) { set_rotated<bf16>(args, run); }

KERNEL(rope_set_rows_quantized, SetArgs, THREADS) {
    const Keys keys = {args.y, args.x, args.table, args.pairs, (int)blockIdx.x};
    if (keys.token >= args.x.ne[2].at(run)) return;
    const i64_t row = row_to_set(args.y, args.ids, keys.token, run);
    const int i = blockIdx.y * THREADS + threadIdx.x;
    if (row >= 0) keys.store_quantized(args.y_type, row, i, run);
}

// --- queries rotated, keys rotated to a cache, values to a cache ---------------------------------------
//
//   grid  x: blocks of the slots of q; then of each token blocks of its keys, and of its values

struct StoreArgs {
    Tensor q_y;
    Tensor q;
    Tensor k_y;
    Tensor k;
    Tensor v_y;  // [n, R]
    Tensor v;    // [n, T] f32
    Ids ids;
    Span table;
    Pairs pairs;
    int k_type;
    int v_type;
    int q_blocks;
    int k_blocks;  // of a token
    int v_blocks;
};

// store_keys(keys, row, i) and store_values(token, row, i) write with thread i of a token.
template <class StoreKeys, class StoreValues>
__device__ inline void rotate_and_store(
    const StoreArgs& args, const Run& run, StoreKeys store_keys, StoreValues store_values
) {
    int block = blockIdx.x;
    if (block < args.q_blocks) {
        const i64_t i = (i64_t)block * THREADS + threadIdx.x;
        rotate_slot<f32>(args.q_y, args.q, args.table, args.pairs, i, run);
        return;
    }
    block -= args.q_blocks;
    const int of_token = args.k_blocks + args.v_blocks, token = block / of_token;
    if (token >= args.ids.list.ne[0].at(run)) return;
    block -= token * of_token;
    const bool is_key = block < args.k_blocks;
    const i64_t row = row_to_set(is_key ? args.k_y : args.v_y, args.ids, token, run);
    if (row < 0) return;
    if (is_key) {
        const Keys keys = {args.k_y, args.k, args.table, args.pairs, token};
        store_keys(keys, row, block * THREADS + (int)threadIdx.x);
    } else {
        store_values(token, row, (block - args.k_blocks) * THREADS + (int)threadIdx.x);
    }
}

KERNEL(rope_store, StoreArgs, THREADS) {
    const auto store_keys = [&](const Keys& keys, i64_t row, int i) {
        switch (args.k_type) {
            case TYPE_F32: return keys.store_slot<f32>(row, i, run);
            case TYPE_F16: return keys.store_slot<f16>(row, i, run);
            default: return keys.store_slot<bf16>(row, i, run);
        }
    };
    const auto store_values = [&](int token, i64_t row, int i) {
        const int first = i * PIECE, n = min((int)PIECE, args.v.ne[0].at(run) - first);
        if (n <= 0) return;
        const int size = size_of(args.v_type);
        float v[PIECE];
        load_piece(TYPE_F32, args.v.at(token, 0, 0) + (i64_t)first * 4, 4, n, v);
        store_piece(args.v_type, args.v_y.at(row, 0, 0) + (i64_t)first * size, size, n, v);
    };
    rotate_and_store(args, run, store_keys, store_values);
}

KERNEL(rope_store_quantized, StoreArgs, THREADS) {
    const auto store_keys = [&](const Keys& keys, i64_t row, int i) {
        keys.store_quantized(args.k_type, row, i, run);
    };
    const auto store_values = [&](int token, i64_t row, int i) {
        if (i >= args.v.ne[0].at(run)) return;  // of a whole warp
        const float v = ((const float*)args.v.at(token, 0, 0))[i];
        const i64_t block = i / QUANTIZED_BLOCK;
        quantize_block(args.v_type, v, args.v_y.at(row, 0, 0) + block * block_bytes(args.v_type));
    };
    rotate_and_store(args, run, store_keys, store_values);
}
