// The selective scan of Mamba: a state that decays, takes in, and is read, token by token.
//
//   grid  teams of threads (scan.cuh), each for some rows of a head's state, which it keeps in registers
//
// From memory a state is read once and written once. Loads of a token are issued while the one before
// is computed; B and C serve all rows of a team.
#include "scan_states.cuh"
#include "unary_functions.cuh"

struct Args {
    Tensor y;
    Tensor s;      // [N, D, H, M]
    Tensor x;      // [D, H, T, S]
    Tensor dt;     // [H, T, S]
    Tensor A;      // [N, H] or [1, H]
    Tensor B;      // [N, G, T, S]
    Tensor C;      // [N, G, T, S]
    Tensor ids;    // [S]
    Lists lists;   // with spans T is of all sequences, and S is 1 in x, dt, B and C
    int K;
    int lanes;
};

// What a thread needs of a token.
template <int ROWS>
struct Token {
    float b[HELD], c[HELD];
    float x[ROWS];
    float dt;
};

// The new states in y.
__device__ inline float* states_in(const Args& args, const Run& run) {
    const Count* ne = args.s.ne;
    const i64_t per_seq = (i64_t)ne[0].at(run) * ne[1].at(run) * ne[2].at(run);
    const i64_t n = args.K * per_seq * args.ids.ne[0].at(run);
    return (float*)args.y.data + args.y.n_elements(run) - n;
}

// With d = softplus(dt):  state[i] = state[i] * exp(d * A[i]) + d * x * B[i];  y = sum_i state[i] * C[i]
// OF_STATES: A is a number for each i, not one for the head.
template <bool OF_STATES, int ROWS>
__device__ void scan(const Args& args, const Run& run) {
    const int n = args.s.ne[0].at(run), size = args.s.ne[1].at(run), n_heads = args.s.ne[2].at(run);
    const int n_tokens = args.x.ne[2].at(run), n_seqs = args.ids.ne[0].at(run);
    const Team team(args.lanes, n);
    const int per_head = (size + ROWS - 1) / ROWS;
    const Task task = task_of(team, (i64_t)per_head * n_heads);
    const i64_t seq = task.seq;
    if (seq >= n_seqs || args.lists.found() == ROWS_BAD) return;
    const Quotient rows = divided(task.number, per_head);
    const int h = (int)rows.whole, first = (int)rows.rest * ROWS;
    const int group = h / (n_heads / args.B.ne[1].at(run));

    const int id = ((const int*)args.ids.data)[seq];
    const bool is_state = id >= 0 && id < args.s.ne[3].at(run);
    if (!is_state) fail(run, id);
    const Part part = part_of(args.lists.spans, seq, n_tokens, run);
    const int here = task.stores && is_state && part.n > 0 ? min(ROWS, size - first) : 0;

    const float* a = (const float*)args.A.at(h, 0, 0);
    float state[ROWS][HELD] = {}, rates[HELD];
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
        if (j < here) team.load(state[j], (const float*)args.s.at(first + j, h, id), 1);
    }
    if (OF_STATES) team.load(rates, a, 1);
    const i64_t per_seq = (i64_t)size * n_heads, all_states = n * per_seq * n_seqs;
    float* outputs = (float*)args.y.data + (i64_t)size * h + first;
    float* kept = states_in(args, run) + n * per_seq * seq;
    kept = new_state(args.lists, seq, kept) + (i64_t)n * (size * h + first);

    const auto load = [&](Token<ROWS>& token, int t) {
        const int at = part.first + t;
        team.load(token.b, (const float*)args.B.at(group, at, part.plane), 1);
        team.load(token.c, (const float*)args.C.at(group, at, part.plane), 1);
        const char* x = args.x.at(h, at, part.plane);
#pragma unroll
        for (int j = 0; j < ROWS; ++j) token.x[j] = f32::load(x, min(first + j, size - 1));
        token.dt = f32::load(args.dt.at(at, part.plane, 0), h);
    };
    Token<ROWS> token, next;
    if (part.n > 0) load(next, 0);
    for (int t = 0; t < part.n; ++t) {
        token = next;
        if (t + 1 < part.n) load(next, t + 1);
        const float d = softplus(token.dt);
        const float of_head = OF_STATES ? 0.0f : expf(d * a[0]);
        float decay[HELD], y[ROWS];
#pragma unroll
        for (int e = 0; e < HELD; ++e) decay[e] = OF_STATES ? expf(d * rates[e]) : of_head;
#pragma unroll
        for (int j = 0; j < ROWS; ++j) {
            const float taken = d * token.x[j];
#pragma unroll
            for (int e = 0; e < HELD; ++e) {
                state[j][e] = fmaf(state[j][e], decay[e], taken * token.b[e]);
            }
            y[j] = team.dot(state[j], token.c);
        }
        team.add_lanes(y);
        float* to = outputs + part.token(t, n_tokens) * per_seq;
        const int copy = part.n - 1 - t;
#pragma unroll
        for (int j = 0; j < ROWS; ++j) {
            if (j >= here) break;
            if (team.lane == 0) to[j] = y[j];
            if (copy < args.K) team.store(state[j], kept + copy * all_states + (i64_t)j * n, 1);
        }
    }
    for (int copy = part.n; copy < args.K; ++copy) {  // of before the first token
        const float zeros[HELD] = {};
        for (int j = 0; j < here; ++j) team.store(zeros, kept + copy * all_states + (i64_t)j * n, 1);
    }
}

template <bool OF_STATES, int ROWS>
__device__ void scan_and_store(const Args& args, const Run& run) {
    scan<OF_STATES, ROWS>(args, run);
    const Count* ne = args.s.ne;
    const i64_t per_seq = (i64_t)ne[0].at(run) * ne[1].at(run) * ne[2].at(run);
    store_kept(args.lists, states_in(args, run), per_seq, run);
}

KERNEL_BLOCKS(scan_of_heads, Args, SCAN_THREADS, 1) { scan_and_store<false, 4>(args, run); }
// Mamba-1 has heads of one row.
KERNEL_BLOCKS(scan_of_states, Args, SCAN_THREADS, 1) { scan_and_store<true, 1>(args, run); }
