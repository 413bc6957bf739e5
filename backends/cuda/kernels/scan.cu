// The selective scan of Mamba: a state that decays, takes in, and is read, token by token.
//
//   grid  a team of threads (scan.cuh) for each row of a head's state, which it keeps in registers
//
// From memory a state is read once and written once. Loads of a token are issued while the one before
// is computed.
#include "scan.cuh"
#include "unary_functions.cuh"

struct Args {
    Tensor y;
    Tensor s;    // [N, D, H, M]
    Tensor x;    // [D, H, T, S]
    Tensor dt;   // [H, T, S]
    Tensor A;    // [N, H] or [1, H]
    Tensor B;    // [N, G, T, S]
    Tensor C;    // [N, G, T, S]
    Tensor ids;  // [S]
    int K;
    int lanes;
};

// What a thread needs of a token.
struct Token {
    float b[HELD], c[HELD];
    float x, dt;
};

// With d = softplus(dt):  state[i] = state[i] * exp(d * A[i]) + d * x * B[i];  y = sum_i state[i] * C[i]
// OF_STATES: A is a number for each i, not one for the head.
template <bool OF_STATES>
__device__ void scan(const Args& args, const Run& run) {
    const int n = args.s.ne[0].at(run), size = args.s.ne[1].at(run), n_heads = args.s.ne[2].at(run);
    const int n_tokens = args.x.ne[2].at(run), n_seqs = args.x.ne[3].at(run);
    const i64_t per_seq = (i64_t)size * n_heads, n_rows = per_seq * n_seqs;
    const Team team(args.lanes, n);
    const i64_t number = ((i64_t)blockIdx.x * blockDim.x + threadIdx.x) / team.lanes;
    // All lanes of a warp take part in its sums. Teams past the last one do its work again, and store
    // nothing.
    const bool is_one = number < n_rows;
    const Quotient row = divided(is_one ? number : n_rows - 1, per_seq);
    const i64_t seq = row.whole;
    const Quotient head = divided(row.rest, size);
    const i64_t h = head.whole, r = head.rest, group = h / (n_heads / args.B.ne[1].at(run));

    const int id = ((const int*)args.ids.data)[seq];
    const bool is_state = id >= 0 && id < args.s.ne[3].at(run);
    if (!is_state) fail(run, id);
    const bool stores = is_one && is_state;

    const float* a = (const float*)args.A.at(h, 0, 0);
    float state[HELD], rates[HELD];
    team.load(state, (const float*)args.s.at(r, h, is_state ? id : 0), 1);
    if (OF_STATES) team.load(rates, a, 1);
    float* outputs = (float*)args.y.data;
    float* kept = outputs + n_rows * n_tokens + n * (per_seq * seq + row.rest);

    const auto load = [&](Token& token, int t) {
        team.load(token.b, (const float*)args.B.at(group, t, seq), 1);
        team.load(token.c, (const float*)args.C.at(group, t, seq), 1);
        token.x = f32::load(args.x.at(h, t, seq), r);
        token.dt = f32::load(args.dt.at(t, seq, 0), h);
    };
    Token token, next;
    load(next, 0);
    for (int t = 0; t < n_tokens; ++t) {
        token = next;
        if (t + 1 < n_tokens) load(next, t + 1);
        const float d = softplus(token.dt), taken = d * token.x;
        const float of_head = OF_STATES ? 0.0f : expf(d * a[0]);
#pragma unroll
        for (int e = 0; e < HELD; ++e) {
            const float decay = OF_STATES ? expf(d * rates[e]) : of_head;
            state[e] = fmaf(state[e], decay, taken * token.b[e]);
        }
        float y[1] = {team.dot(state, token.c)};
        team.add_lanes(y);
        const int copy = n_tokens - 1 - t;
        if (stores && team.lane == 0) outputs[(seq * n_tokens + t) * per_seq + row.rest] = y[0];
        if (stores && copy < args.K) team.store(state, kept + (i64_t)copy * n * n_rows, 1);
    }
    for (int copy = n_tokens; stores && copy < args.K; ++copy) {  // of before the first token
        const float zeros[HELD] = {};
        team.store(zeros, kept + (i64_t)copy * n * n_rows, 1);
    }
}

KERNEL(scan_of_heads, Args, SCAN_THREADS) { scan<false>(args, run); }
KERNEL(scan_of_states, Args, SCAN_THREADS) { scan<true>(args, run); }
