// What the kernels of attention share: the cut of cells into chunks, the plan of a run, states.
//
//   s[j] = scale * q.k[j], soft-capped, + slope(h) * mask[j]        -inf where hidden
//   y    = sum_j p[j] * v[j] / sum_j p[j],   p[j] = 2^((s[j] - m) log2 e), m the largest s so far
//
// One order of sums: cells are counted by their place in the list (without lists, in the stream). They
// are cut into chunks at fixed places. Within a chunk a kernel takes tiles of cells in order, rescaling
// what it has when the maximum grows; a tile that is hidden from a row leaves its state as it is. The
// states of chunks are folded in order: by the block that walks them all, or where several do by the one
// that is last, with the same arithmetic. So no bit of a row depends on the other rows, nor on who
// computes what.
#pragma once
#include "alibi.cuh"
#include "types.cuh"

constexpr float LOG2_E = 1.44269504f;

struct Args {
    Tensor y;      // [Dv, Hq, n_q, S] f32, contiguous
    Tensor q;      // [D, n_q, Hq, S] f32
    Tensor k;      // [D, n_kv, Hk, S_k]
    Tensor v;      // [Dv, n_kv, Hk, S_k]
    Tensor mask;   // [n, >= n_q, Hm, Sm] f16, or absent
    Tensor cells;  // [n_max, n_list] i32, or absent
    Tensor seen;   // [3, n_q, S] i32, with cells
    Tensor sinks;  // [Hq] f32, or absent
    Span plan;
    Span partial;
    float scale;
    float max_bias;
    float logit_softcap;
    float unit;         // of weights: p is multiplied by it
    int k_type;         // KvType
    int v_type;
    int k_vectors;      // whether rows are aligned to 16 bytes
    int v_vectors;
    int max_queries;    // room of the plan and of the states
    int max_items;
    int max_slots;
    int task_queries;   // most queries of a task
    int blocks_per_item;
    int target_blocks;  // about so many blocks of equal work are wanted
};

// --- chunks: 64 of 256 cells, then 32 for each doubling, so that their number stays small ---

constexpr int CHUNK = 256;
constexpr int EQUAL_CHUNKS = 64;
constexpr int CHUNKS_A_DOUBLING = 32;
constexpr int EQUAL_CELLS = CHUNK * EQUAL_CHUNKS;

__device__ inline i64_t chunk_begin(int chunk) {
    if (chunk <= EQUAL_CHUNKS) return (i64_t)chunk * CHUNK;
    const int doubling = (chunk - EQUAL_CHUNKS) / CHUNKS_A_DOUBLING;
    const int rest = (chunk - EQUAL_CHUNKS) % CHUNKS_A_DOUBLING;
    return (i64_t)(EQUAL_CELLS + rest * (EQUAL_CELLS / CHUNKS_A_DOUBLING)) << doubling;
}

__device__ inline int chunk_of(int cell) {
    if (cell < EQUAL_CELLS) return cell / CHUNK;
    const int doubling = 31 - __clz(cell / EQUAL_CELLS);
    const int rest = (cell >> doubling) - EQUAL_CELLS;
    return EQUAL_CHUNKS + CHUNKS_A_DOUBLING * doubling +
           rest / (EQUAL_CELLS / CHUNKS_A_DOUBLING);
}

// --- the plan of a run, which attention_plan makes ---

// What a query sees, checked: entries first .. end - 1 of a list, or cells of its stream.
struct Query {
    int list;
    int first;
    int end;
};

// Queries that follow each other in a stream and see the same list, with all heads.
struct Task {
    int stream;
    int query;  // the first one
    int n_queries;
    int list;
    int first;  // places that any of them sees: first .. end - 1
    int end;
    int first_chunk;
    int n_chunks;
    int slot;  // of the states of its chunks; -1: a block walks all chunks
    int n_items;
};

// Chunks of a task that one block takes, for some heads.
struct Item {
    int task;
    int chunk;
    int end_chunk;
};

struct PlanHeader {
    int n_tasks;
    int n_items;
};

struct Plan {
    PlanHeader* header;
    Query* queries;
    Task* tasks;
    Item* items;
    int* arrived;  // blocks that have stored states of a task: [task, block along y]

    __device__ explicit Plan(const Args& args) {
        header = (PlanHeader*)args.plan.data;
        queries = (Query*)(header + 1);
        tasks = (Task*)(queries + args.max_queries);
        items = (Item*)(tasks + args.max_queries);
        arrived = (int*)(items + args.max_items);
    }
    __device__ const Query& query_of(const Task& task, int i, int n_query) const {
        return queries[(i64_t)task.stream * n_query + task.query + i];
    }
};

// --- states: the largest score, the sum of weights, and the weighted sum of V ---

// What scores are compared with: the largest, or 0 where all are hidden, since -inf - -inf is NaN.
__device__ inline float reference_of(float largest) {
    return largest == minus_infinity() ? 0.0f : largest;
}

// e^(score - reference)
__device__ inline float weight_of(float score, float reference) {
    return exp2f((score - reference) * LOG2_E);
}

struct Softmax {
    float largest;
    float total;  // of weights
};

__device__ inline Softmax empty_softmax() { return {minus_infinity(), 0.0f}; }

// How the state of a further chunk is added: sum = fmaf(added, its factor, sum * its own factor).
struct Fold {
    float factor;
    float added_factor;
};

__device__ inline Fold fold(Softmax& state, const Softmax& added) {
    const float largest = fmaxf(state.largest, added.largest);
    const float reference = reference_of(largest);
    const Fold f = {weight_of(state.largest, reference), weight_of(added.largest, reference)};
    state.total = fmaf(added.total, f.added_factor, state.total * f.factor);
    state.largest = largest;
    return f;
}

// The factor of a weighted sum in the result: 0 where nothing is seen. `sink` is -inf without one.
__device__ inline float final_factor(const Softmax& state, float sink, float unit) {
    const float reference = reference_of(fmaxf(state.largest, sink));
    const float factor = weight_of(state.largest, reference);
    const float total = fmaf(unit, weight_of(sink, reference), state.total * factor);
    return total == 0.0f ? 0.0f : factor / total;
}

__device__ inline float sink_of(const Args& args, int head) {
    return args.sinks.data ? ((const float*)args.sinks.data)[head] : minus_infinity();
}

// Adding 0 makes a -0 a +0, since folding the empty state of a hidden chunk may do so or not.
__device__ inline float final_value(float sum, float factor) { return sum * factor + 0.0f; }

// The states of chunks in scratch memory, by slot and head. A slot is a chunk of a query.
struct Partials {
    Softmax* softmax;
    float* sums;  // [slot, head, Dv]
    int n_heads;
    int dv;

    __device__ Partials(const Args& args, const Run& run) {
        n_heads = args.q.ne[2].at(run);
        dv = args.v.ne[0].at(run);
        softmax = (Softmax*)args.partial.data;
        sums = (float*)(softmax + (i64_t)args.max_slots * args.q.ne[2].bound);
    }
    __device__ i64_t index(int slot, int head) const { return (i64_t)slot * n_heads + head; }
};
