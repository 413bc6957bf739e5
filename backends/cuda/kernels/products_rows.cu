// What products need beside themselves: rounded rows of x, lists of the columns of experts, sums of
// slices.
#include "products_floats.cuh"
#include "products_int8.cuh"
#include "products_many.cuh"

constexpr int THREADS = 256;

// --- x: each row as chunks, those of products_int8.cuh or products_floats.cuh ------------------------
//
//   grid  a thread for four neighbours of a row, chunks filled up

constexpr int PIECE = 4;

struct RoundArgs {
    Tensor x;
    Span rounded;
    i64_t rounded_bytes;  // of a row
    int type;             // of x
    int row_pieces;       // pieces of a row, a whole number of chunks
};

// Four neighbours of a row; zeros behind the last element.
struct XPiece {
    i64_t row;
    int first;
    float v[PIECE];

    __device__ XPiece(const RoundArgs& args, const Run& run) {
        const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
        row = i / args.row_pieces;
        first = (int)(i - row * args.row_pieces) * PIECE;
        for (int j = 0; j < PIECE; ++j) v[j] = 0.0f;
        if (row >= args.x.n_rows(run)) {
            row = -1;
            return;
        }
        const Row at = row_of(args.x, row, run);
        const char* from = args.x.at(first, at.i1, at.i2, at.i3);
        const int n = args.x.ne[0].at(run) - first;
        if (args.type == TYPE_F32 && n >= PIECE && args.x.nb[0] == 4 && (size_t)from % 16 == 0) {
            const float4 four = *(const float4*)from;
            v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
            return;
        }
        for (int j = 0; j < PIECE; ++j) {
            if (j < n) v[j] = load(args.type, from + j * args.x.nb[0]);
        }
    }

    __device__ static float load(int type, const char* at) {
        return type == TYPE_F32 ? f32::load(at, 0) : type == TYPE_F16 ? f16::load(at, 0)
                                                                      : bf16::load(at, 0);
    }
};

// The largest of 8 neighbouring lanes.
__device__ inline u32_t most_of_8(u32_t v) {
    for (int lane = 4; lane > 0; lane /= 2) v = max(v, __shfl_xor_sync(ALL_LANES, v, lane));
    return v;
}

// Chunks for Int8: 8 lanes have a block of 32. Rounds as Rounding.INT8X32 says.
KERNEL(round_to_int8, RoundArgs, THREADS) {
    const XPiece x(args, run);
    const float4 four = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
    const Rounder rounder(most_of_8(most_of_four(four)));
    int sum;
    const u32_t codes = four_codes(rounder, four, sum);
    for (int lane = 1; lane < 4; lane *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lane);  // of 16
    const int of_32 = sum + __shfl_xor_sync(ALL_LANES, sum, 4);
    if (x.row < 0) return;
    char* chunk = args.rounded.data + x.row * args.rounded_bytes + (i64_t)(x.first / 256) * 352;
    const int block = x.first % 256 / 32, quad = x.first % 32 / 4;
    *(u32_t*)(chunk + block * 32 + quad % 4 * 8 + quad / 4 * 4) = codes;
    if (quad == 0) {
        ((float*)(chunk + 256))[block] = rounder.d;
        ((float*)(chunk + 288))[block] = rounder.d * (float)of_32;
    }
    if (quad % 4 == 0) ((short*)(chunk + 320))[block * 2 + quad / 4] = (short)sum;
}

KERNEL(round_to_f16, RoundArgs, THREADS) {
    const XPiece x(args, run);
    if (x.row < 0) return;
    u16_t* to = (u16_t*)(args.rounded.data + x.row * args.rounded_bytes) + x.first;
    u32_t bits[PIECE];
    for (int j = 0; j < PIECE; ++j) bits[j] = float_to_half(x.v[j]);
    *(uint2*)to = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

// As Rounding.BF16X2 says: chunks of 64 numbers, and of 64 rests behind them.
KERNEL(round_to_bf16, RoundArgs, THREADS) {
    const XPiece x(args, run);
    if (x.row < 0) return;
    u16_t* chunk = (u16_t*)(args.rounded.data + x.row * args.rounded_bytes) + x.first / 64 * 128;
    float rest[PIECE];
    for (int j = 0; j < PIECE; ++j) rest[j] = x.v[j];
    for (int part = 0; part < 2; ++part) {
        u32_t bits[PIECE];
        for (int j = 0; j < PIECE; ++j) {
            bits[j] = float_to_bf16(rest[j]);
            rest[j] = left_of(rest[j], bf16_to_float((u16_t)bits[j]));
        }
        u16_t* to = chunk + part * 64 + x.first % 64;
        *(uint2*)to = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    }
}

KERNEL(copy_f32, RoundArgs, THREADS) {
    const XPiece x(args, run);
    if (x.row < 0) return;
    float* to = (float*)(args.rounded.data + x.row * args.rounded_bytes) + x.first;
    *(float4*)to = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
}

// --- mul_mat_id -------------------------------------------------------------------------------------

struct ListArgs {
    Tensor ids;
    Span lists;
    int n_experts;
};

// The columns of each expert, in order. A block makes the list of one expert; the first one also looks
// for ids that are out of range, of which there are none in a list.
//   grid  experts
KERNEL(list_columns, ListArgs, THREADS) {
    __shared__ int of_warp[THREADS / 32];
    const ExpertLists lists(args.lists, args.n_experts);
    const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n = args.ids.ne[0].at(run) * args.ids.ne[1].at(run);
    int n_before = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const int id = id_of(args.ids, i, run);
        n_before += id >= 0 && id < expert;
        if (expert == 0 && (id < 0 || id >= args.n_experts)) fail(run, id);
    }
    n_before = (int)__reduce_add_sync(ALL_LANES, n_before);
    if (lane == 0) of_warp[warp] = n_before;
    __syncthreads();
    int first = 0;
    for (int i = 0; i < THREADS / 32; ++i) first += of_warp[i];

    int count = 0;
    for (int base = 0; base < n; base += THREADS) {
        const int i = base + threadIdx.x;
        const bool is_mine = i < n && id_of(args.ids, i, run) == expert;
        const u32_t mine = __ballot_sync(ALL_LANES, is_mine);
        __syncthreads();  // the sums of the last round were read
        if (lane == 0) of_warp[warp] = __popc(mine);
        __syncthreads();
        int at = first + count + __popc(mine & ((1u << lane) - 1));
        for (int j = 0; j < warp; ++j) at += of_warp[j];
        for (int j = 0; j < THREADS / 32; ++j) count += of_warp[j];
        if (is_mine) ((int*)lists.columns)[at] = i;
    }
    if (threadIdx.x == 0) {
        ((int*)lists.first)[expert] = first;
        ((int*)lists.count)[expert] = count;
    }
}

// --- sums of slices ---------------------------------------------------------------------------------

constexpr int QUAD = 4;  // neighbours in a column, for a thread

// v = the first `n` of four neighbours, summed over slices from the first to the last.
__device__ inline void add_slices(
    float (&v)[QUAD], const ProductArgs& args, const Matrix& matrix, int column, int row, int n,
    int n_slices, bool is_up
) {
    for (int slice = 0; slice < n_slices; ++slice) {
        const float* from = sums_of_slice(args, matrix, column, slice, is_up) + row;
        float part[QUAD] = {};
        if (n == QUAD) {
            const float4 four = *(const float4*)from;
            part[0] = four.x, part[1] = four.y, part[2] = four.z, part[3] = four.w;
        } else {
            for (int i = 0; i < QUAD; ++i) part[i] = i < n ? from[i] : 0.0f;
        }
        for (int i = 0; i < QUAD; ++i) v[i] = slice == 0 ? part[i] : v[i] + part[i];
    }
}

// y = sums of slices, finished.
//   grid  a thread for four neighbours of a column
KERNEL(finish_product, ProductArgs, THREADS) {
    const Tensor& y = args.y[0];
    const i64_t i = (i64_t)blockIdx.x * THREADS + threadIdx.x;
    const int m = y.ne[0].at(run), quads = (m + QUAD - 1) / QUAD;
    const i64_t column_of_all = i / quads;
    const int row = (int)(i - column_of_all * quads) * QUAD, n = min((int)QUAD, m - row);
    if (column_of_all >= y.n_rows(run)) return;
    const Row at = row_of(y, column_of_all, run);
    Matrix matrix = {0, 0, at.i2, at.i3};
    int column = at.i1;
    if (args.ids.data) {
        column = (int)column_of_all;
        if (!is_expert(args, id_of(args.ids, column, run), run)) return;
    }
    const int k = args.weight[0].ne[0].at(run), slices = n_slices((k + args.chunk - 1) / args.chunk);
    float v[QUAD], up[QUAD] = {};
    add_slices(v, args, matrix, column, row, n, slices, false);
    if (args.up.data) add_slices(up, args, matrix, column, row, n, slices, true);
    float* to = column_of_y(args, matrix, column, run) + row;
    for (int j = 0; j < QUAD; ++j) {
        if (j < n) to[j] = finished(args, v[j], up[j], row + j);
    }
}
