// Linear attention with a matrix for each head: gated, RWKV-6 and -7, the gated delta rule.
//
//   grid  a team of threads for some vectors of a state (linear_attention.cuh)
#include "linear_attention.cuh"

// As many as there are states, or as are taken from a table of them.
template <class Args>
__device__ inline int n_seqs_of(const Args& args, const Count& n_states, const Run& run) {
    return (args.ids.data ? args.ids.ne[0] : n_states).at(run);
}

// The sizes of ops whose tokens [D, H, T] are those of one sequence after another.
template <class Args>
__device__ inline Sizes sizes_of_tokens(const Args& args, const Tensor& x, const Run& run) {
    const int n_tokens = x.ne[2].at(run), n_seqs = n_seqs_of(args, args.state.ne[1], run);
    const int n_planes = args.lists.spans.data ? 1 : n_seqs;
    return {x.ne[0].at(run), x.ne[1].at(run), n_seqs, n_tokens / n_planes, 1};
}

__device__ inline Walk walk_of_tokens(const Tensor& x, const Head& at, const Sizes& sizes) {
    return {x.at(at.head, at.part.token(0, sizes.n_tokens), 0), x.nb[2]};
}

// --- gated linear attention -----------------------------------------------------------------------

struct GatedArgs {
    Tensor y, k, v, q, g, state, ids;
    Lists lists;
    float scale;
    int lanes;
};

// state[i, j] = state[i, j] * g[i] + k[i] * v[j];  y[j] = scale * sum_i state[i, j] * q[i]
struct Gated {
    typedef GatedArgs Args;
    static constexpr int ROWS = 3;
    static constexpr int SCALARS = 0;
    static constexpr bool COLUMNS = true;

    __device__ static Sizes sizes_of(const Args& args, const Run& run) {
        return sizes_of_tokens(args, args.k, run);
    }
    __device__ static Walk row_of(
        const Args& args, int i, const Head& at, const Sizes& sizes, const Run&
    ) {
        return walk_of_tokens(i == 0 ? args.k : i == 1 ? args.q : args.g, at, sizes);
    }
    __device__ static Walk value_of(const Args& args, const Head& at, const Sizes& sizes) {
        return walk_of_tokens(args.v, at, sizes);
    }
    __device__ static Walk scalar_of(const Args&, int, const Head&) { return {}; }

    __device__ static void step(
        const Args& args, const Team& team, float (&state)[VECTORS][HELD],
        const Token<Gated>& token, float (&y)[VECTORS]
    ) {
        const auto &k = token.rows[0], &q = token.rows[1], &g = token.rows[2];
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
#pragma unroll
            for (int e = 0; e < HELD; ++e) {
                state[j][e] = fmaf(k[e], token.values[j], state[j][e] * g[e]);
            }
            y[j] = team.dot(state[j], q);
        }
        team.add_lanes(y);
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) y[j] *= args.scale;
    }
};

KERNEL_BLOCKS(gated_linear_attn, GatedArgs, SCAN_THREADS, 1) { run_and_store<Gated>(args, run); }

// --- RWKV-6 ---------------------------------------------------------------------------------------

struct Wkv6Args {
    Tensor y, k, v, r, tf, td, state, ids;
    Lists lists;
    int lanes;
};

// y[j] = sum_i r[i] * (state[i, j] + tf[i] * k[i] * v[j]);  state[i, j] = state[i, j] * td[i] + k[i] * v[j]
struct Wkv6 {
    typedef Wkv6Args Args;
    static constexpr int ROWS = 4;
    static constexpr int SCALARS = 0;
    static constexpr bool COLUMNS = true;

    __device__ static Sizes sizes_of(const Args& args, const Run& run) {
        return sizes_of_tokens(args, args.k, run);
    }
    __device__ static Walk row_of(
        const Args& args, int i, const Head& at, const Sizes& sizes, const Run&
    ) {
        if (i == 3) return {args.tf.data + 4ll * at.head * sizes.n, 0};
        return walk_of_tokens(i == 0 ? args.k : i == 1 ? args.r : args.td, at, sizes);
    }
    __device__ static Walk value_of(const Args& args, const Head& at, const Sizes& sizes) {
        return walk_of_tokens(args.v, at, sizes);
    }
    __device__ static Walk scalar_of(const Args&, int, const Head&) { return {}; }

    __device__ static void step(
        const Args&, const Team& team, float (&state)[VECTORS][HELD],
        const Token<Wkv6>& token, float (&y)[VECTORS]
    ) {
        const auto &k = token.rows[0], &r = token.rows[1], &td = token.rows[2], &tf = token.rows[3];
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
            float seen[HELD];
#pragma unroll
            for (int e = 0; e < HELD; ++e) {
                const float kv = k[e] * token.values[j];
                seen[e] = fmaf(kv, tf[e], state[j][e]);
                state[j][e] = fmaf(state[j][e], td[e], kv);
            }
            y[j] = team.dot(seen, r);
        }
        team.add_lanes(y);
    }
};

KERNEL_BLOCKS(rwkv_wkv6, Wkv6Args, SCAN_THREADS, 1) { run_and_store<Wkv6>(args, run); }

// --- RWKV-7 ---------------------------------------------------------------------------------------

struct Wkv7Args {
    Tensor y, r, w, k, v, a, b, state, ids;
    Lists lists;
    int lanes;
};

// sa[i] = sum_j state[i, j] * a[j];  state[i, j] = state[i, j] * w[j] + v[i] * k[j] + sa[i] * b[j];
// y[i] = sum_j state[i, j] * r[j]
struct Wkv7 {
    typedef Wkv7Args Args;
    static constexpr int ROWS = 5;
    static constexpr int SCALARS = 0;
    static constexpr bool COLUMNS = false;

    __device__ static Sizes sizes_of(const Args& args, const Run& run) {
        return sizes_of_tokens(args, args.r, run);
    }
    __device__ static Walk row_of(
        const Args& args, int i, const Head& at, const Sizes& sizes, const Run&
    ) {
        const Tensor& x = i == 0 ? args.w : i == 1 ? args.k : i == 2 ? args.a : i == 3 ? args.b : args.r;
        return walk_of_tokens(x, at, sizes);
    }
    __device__ static Walk value_of(const Args& args, const Head& at, const Sizes& sizes) {
        return walk_of_tokens(args.v, at, sizes);
    }
    __device__ static Walk scalar_of(const Args&, int, const Head&) { return {}; }

    __device__ static void step(
        const Args&, const Team& team, float (&state)[VECTORS][HELD],
        const Token<Wkv7>& token, float (&y)[VECTORS]
    ) {
        const auto &w = token.rows[0], &k = token.rows[1], &a = token.rows[2], &b = token.rows[3];
        float sa[VECTORS];
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) sa[j] = team.dot(state[j], a);
        team.add_lanes(sa);
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
#pragma unroll
            for (int e = 0; e < HELD; ++e) {
                const float taken = fmaf(b[e], sa[j], k[e] * token.values[j]);
                state[j][e] = fmaf(state[j][e], w[e], taken);
            }
            y[j] = team.dot(state[j], token.rows[4]);
        }
        team.add_lanes(y);
    }
};

KERNEL_BLOCKS(rwkv_wkv7, Wkv7Args, SCAN_THREADS, 1) { run_and_store<Wkv7>(args, run); }

// --- the gated delta rule -------------------------------------------------------------------------

struct DeltaArgs {
    Tensor y, q, k, v, g, beta, state, ids;
    Lists lists;
    int K;
    int lanes;
};

// state[i, j] *= exp(g);  delta[j] = beta * (v[j] - sum_i state[i, j] * k[i]);
// state[i, j] += k[i] * delta[j];  y[j] = sum_i state[i, j] * q[i] / sqrt(D)
// i is the faster one in memory. GATES: g is a number for each i, not one for the head.
template <bool GATES>
struct Delta {
    typedef DeltaArgs Args;
    static constexpr int ROWS = GATES ? 3 : 2;
    static constexpr int SCALARS = GATES ? 1 : 2;
    static constexpr bool COLUMNS = false;

    __device__ static Sizes sizes_of(const Args& args, const Run& run) {
        const Count* ne = args.v.ne;
        const int n_seqs = n_seqs_of(args, args.state.ne[3], run);
        return {ne[0].at(run), ne[1].at(run), n_seqs, ne[2].at(run), args.K};
    }
    // Head h of v has head h % Hk of q and k; neighbours among its sequences share one of theirs.
    __device__ static Walk row_of(
        const Args& args, int i, const Head& at, const Sizes& sizes, const Run& run
    ) {
        if (i == 2) return walk_of(args.g, at);
        const Tensor& x = i == 0 ? args.k : args.q;
        const i64_t plane = at.part.plane * x.ne[3].at(run) / sizes.n_seqs;
        return {x.at(at.head % x.ne[1].at(run), at.part.first, plane), x.nb[2]};
    }
    __device__ static Walk value_of(const Args& args, const Head& at, const Sizes&) {
        return walk_of(args.v, at);
    }
    // beta, and the gate of a head
    __device__ static Walk scalar_of(const Args& args, int i, const Head& at) {
        return walk_of(i == 0 ? args.beta : args.g, at);
    }
    __device__ static Walk walk_of(const Tensor& x, const Head& at) {
        return {x.at(at.head, at.part.first, at.part.plane), x.nb[2]};
    }

    __device__ static void step(
        const Args& args, const Team& team, float (&state)[VECTORS][HELD],
        const Token<Delta>& token, float (&y)[VECTORS]
    ) {
        const auto &k = token.rows[0], &q = token.rows[1];
        float decay[HELD];
        const float of_head = GATES ? 0.0f : expf(token.scalars[1]);
#pragma unroll
        for (int e = 0; e < HELD; ++e) decay[e] = GATES ? expf(token.rows[ROWS - 1][e]) : of_head;
        float delta[VECTORS];
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
#pragma unroll
            for (int e = 0; e < HELD; ++e) state[j][e] *= decay[e];
            delta[j] = team.dot(state[j], k);
        }
        team.add_lanes(delta);
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
            delta[j] = (token.values[j] - delta[j]) * token.scalars[0];
#pragma unroll
            for (int e = 0; e < HELD; ++e) state[j][e] = fmaf(k[e], delta[j], state[j][e]);
            y[j] = team.dot(state[j], q);
        }
        team.add_lanes(y);
        const float scale = 1.0f / sqrtf((float)args.v.ne[0].bound);
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) y[j] *= scale;
    }
};

KERNEL_BLOCKS(delta_of_heads, DeltaArgs, SCAN_THREADS, 1) { run_and_store<Delta<false>>(args, run); }
KERNEL_BLOCKS(delta_of_elements, DeltaArgs, SCAN_THREADS, 1) { run_and_store<Delta<true>>(args, run); }
