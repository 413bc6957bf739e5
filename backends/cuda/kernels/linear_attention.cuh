// Linear attention whose state is a matrix for each head: the walk over tokens that its rules share.
//
// A state has D vectors of D elements, its rows or its columns: what a rule sums along. Vectors do not
// depend on one another. A team of threads (scan.cuh) keeps VECTORS of them in registers, and takes the
// tokens one after another. Loads of a token are issued while the one before is computed. From memory a
// state is read once and written once.
//
// A rule has
//   Args, ROWS, SCALARS, COLUMNS   its arguments; how many rows of D numbers, and how many numbers, a
//                                  token has for all vectors; whether vectors are columns of the state
//                                  in memory
//   sizes_of                       see Sizes
//   row_of, scalar_of, value_of    where a head's are: those for all vectors, and one for each vector
//   step                           new states and outputs
#pragma once
#include "scan_states.cuh"

struct Sizes {
    int n;  // D
    int n_heads;
    int n_seqs;
    int n_tokens;  // of a sequence, with spans of all of them
    int n_kept;    // states to store: after the last token, after the one before, …
};

// Where a head of a sequence has something of each token: that of the first, and bytes to the next.
struct Walk {
    const char* first;
    i64_t step;

    __device__ const float* at(int t) const { return (const float*)(first + t * step); }
};

struct Head {
    int head;
    i64_t seq;
    Part part;
};

constexpr int VECTORS = 4;

// What a thread needs of a token.
template <class Rule>
struct Token {
    float rows[Rule::ROWS][HELD];
    float scalars[Rule::SCALARS + 1];  // one more: there may be none
    float values[VECTORS];
};

// The new states in y.
template <class Rule>
__device__ float* states_in(const typename Rule::Args& args, const Sizes& sizes, const Run& run) {
    const i64_t n = (i64_t)sizes.n * sizes.n * sizes.n_heads * sizes.n_seqs;
    return (float*)args.y.data + args.y.n_elements(run) - sizes.n_kept * n;
}

template <class Rule>
__device__ void run_heads(const typename Rule::Args& args, const Sizes& sizes, const Run& run) {
    const int n = sizes.n;
    const Team team(args.lanes, n);
    const int per_head = (n + VECTORS - 1) / VECTORS;
    const Task task = task_of(team, (i64_t)per_head * sizes.n_heads);
    if (task.seq >= sizes.n_seqs || args.lists.found() == ROWS_BAD) return;
    const Quotient vectors = divided(task.number, per_head);
    const Part part = part_of(args.lists.spans, task.seq, sizes.n_tokens, run);
    const Head head = {(int)vectors.whole, task.seq, part};
    const int first = (int)vectors.rest * VECTORS;
    const int here = task.stores && part.n > 0 ? min(VECTORS, n - first) : 0;

    const i64_t to_element = Rule::COLUMNS ? n : 1, to_vector = Rule::COLUMNS ? 1 : n;
    const i64_t square = (i64_t)n * n, per_seq = square * sizes.n_heads;
    const i64_t all_states = per_seq * sizes.n_seqs;
    const float* old = (const float*)args.state.data + per_seq * head.seq;
    if (args.ids.data) old = (const float*)args.state.at(((const int*)args.ids.data)[head.seq], 0, 0);
    old += square * head.head;
    float state[VECTORS][HELD] = {};
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {
        if (j < here) team.load(state[j], old + (first + j) * to_vector, to_element);
    }
    float* outputs = (float*)args.y.data;
    float* kept = new_state(args.lists, head.seq, states_in<Rule>(args, sizes, run) + per_seq * head.seq);
    kept += square * head.head;

    Walk rows[Rule::ROWS], scalars[Rule::SCALARS + 1];
    const Walk values = Rule::value_of(args, head, sizes);
#pragma unroll
    for (int i = 0; i < Rule::ROWS; ++i) rows[i] = Rule::row_of(args, i, head, sizes, run);
#pragma unroll
    for (int i = 0; i < Rule::SCALARS; ++i) scalars[i] = Rule::scalar_of(args, i, head);
    const auto load = [&](Token<Rule>& token, int t) {
#pragma unroll
        for (int i = 0; i < Rule::ROWS; ++i) team.load(token.rows[i], rows[i].at(t), 1);
#pragma unroll
        for (int i = 0; i < Rule::SCALARS; ++i) token.scalars[i] = *scalars[i].at(t);
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) token.values[j] = values.at(t)[min(first + j, n - 1)];
    };

    Token<Rule> token, next;
    for (int t = -1; t < part.n; ++t) {
        token = next;
        if (t + 1 < part.n) load(next, t + 1);
        if (t < 0) continue;
        float y[VECTORS];
        Rule::step(args, team, state, token, y);
        const i64_t of_all = part.token(t, sizes.n_tokens);
        float* to = outputs + (of_all * sizes.n_heads + head.head) * n + first;
        const int copy = part.n - 1 - t;
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
            if (j >= here) break;
            if (team.lane == 0) to[j] = y[j];
            if (copy < sizes.n_kept) {
                float* place = kept + copy * all_states + (first + j) * to_vector;
                team.store(state[j], place, to_element);
            }
        }
    }
    for (int copy = part.n; copy < sizes.n_kept; ++copy) {  // of before the first token
        const float zeros[HELD] = {};
        for (int j = 0; j < here; ++j) {
            team.store(zeros, kept + copy * all_states + (first + j) * to_vector, to_element);
        }
    }
}

template <class Rule>
__device__ void run_and_store(const typename Rule::Args& args, const Run& run) {
    const Sizes sizes = Rule::sizes_of(args, run);
    run_heads<Rule>(args, sizes, run);
    const i64_t per_seq = (i64_t)sizes.n * sizes.n * sizes.n_heads;
    store_kept(args.lists, states_in<Rule>(args, sizes, run), per_seq, run);
}
