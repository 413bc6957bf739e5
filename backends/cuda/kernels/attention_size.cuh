// The size of a block of attention_mma, and what it and its warps hold.
//
// S is the Size everywhere. A lane of a warp has rows g and g + 8 of each tile of 16, g = lane / 4: its
// halves 0 and 1.
#pragma once
#include "attention_block.cuh"
#include "attention_tiles.cuh"

constexpr int STAGES = 2;

// Places that all rows of a warp see that are computed.
struct SeenByAll {
    int first, end;

    __device__ bool sees(int place, int n) const { return place >= first && place + n <= end; }
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
        alignas(4) u16_t n_cells[GROUPS][STAGES][CELL_WARPS];  // that some row sees, of each warp's
        int folded[2];             // the chunk that is folded next, in even turns and in others
        RowTable<ROWS> rows;
        float scales[ROWS];        // of scores: the op's, over that of q
        union {
            const float* queries[ROWS];
            Softmax all[ROWS];     // of the chunks before
        };
        SeenByAll spans[GROUPS * WARPS];
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

// What a warp's rows have of a tile of cells: scores, later weights.
template <class S>
struct Scores {
    float v[S::TILES][S::CELLS / 8][4];  // of 8 cells each
};

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
