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
//   sizes_of, state_of             see Sizes; the state of a head before the first token
//   row_of, scalar_of, value_of    where a head's are: those for all vectors, and one for each vector
//   step                           new states and outputs
#pragma once
#include "scan.cuh"

struct Sizes {
    int n;  // D
    int n_heads;
    int n_seqs;
    int n_tokens;  // of a sequence
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
    int seq;
};

constexpr int VECTORS = 4;

// What a thread needs of a token.
template <class Rule>
struct Token {
    float rows[Rule::ROWS][HELD];
    float scalars[Rule::SCALARS + 1];  // one more: there may be none
    float values[VECTORS];
};

template <class Rule>
__device__ void run_heads(const typename Rule::Args& args, const Run& run) {
    const Sizes sizes = Rule::sizes_of(args, run);
    const int n = sizes.n;
    const Team team(args.lanes, n);
    const i64_t number = ((i64_t)blockIdx.x * blockDim.x + threadIdx.x) / team.lanes;
    const Quotient vectors = divided(number, (n + VECTORS - 1) / VECTORS);
    const i64_t n_states = (i64_t)sizes.n_heads * sizes.n_seqs;
    // All lanes of a warp take part in its sums. Teams past the last one do its work again, and store
    // nothing.
    const bool is_one = vectors.whole < n_states;
    const i64_t which = is_one ? vectors.whole : n_states - 1;
    const int first = (int)vectors.rest * VECTORS;
    const int here = is_one ? min(VECTORS, n - first) : 0;
    const Quotient of_seq = divided(which, sizes.n_heads);
    const Head head = {(int)of_seq.rest, (int)of_seq.whole};

    const i64_t to_element = Rule::COLUMNS ? n : 1, to_vector = Rule::COLUMNS ? 1 : n;
    const i64_t square = (i64_t)n * n;
    const float* old = Rule::state_of(args, head);
    float state[VECTORS][HELD];
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {
        team.load(state[j], old + min(first + j, n - 1) * to_vector, to_element);
    }
    float* outputs = (float*)args.y.data;
    float* kept = outputs + n_states * sizes.n_tokens * n;
    kept += square * which;

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
    for (int t = -1; t < sizes.n_tokens; ++t) {
        token = next;
        if (t + 1 < sizes.n_tokens) load(next, t + 1);
        if (t < 0) continue;
        float y[VECTORS];
        Rule::step(args, team, state, token, y);
        const i64_t of_all = (i64_t)head.seq * sizes.n_tokens + t;
        float* to = outputs + (of_all * sizes.n_heads + head.head) * n + first;
        const int copy = sizes.n_tokens - 1 - t;
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) {
            if (j >= here) break;
            if (team.lane == 0) to[j] = y[j];
            if (copy < sizes.n_kept) {
                float* place = kept + copy * n_states * square + (first + j) * to_vector;
                team.store(state[j], place, to_element);
            }
        }
    }
    for (int copy = sizes.n_tokens; copy < sizes.n_kept; ++copy) {  // of before the first token
        const float zeros[HELD] = {};
        for (int j = 0; j < here; ++j) {
            team.store(zeros, kept + copy * n_states * square + (first + j) * to_vector, to_element);
        }
    }
}
