// Copies of plain elements, and of bytes as they are: cpy, cont, dup, cast, concat, repeat.
//
//   y, x  the same elements by loops that copy_loops.py has made of their dimensions: four counts, and
//         strides for each; `unit` is what a thread moves, 1 to 16 bytes
//   grid  a thread for each unit, or for each piece of four elements where types differ; transpose has
//         a block for each tile
//   bandwidth-bound: each byte is read and written once
#include "copy_elements.cuh"

constexpr int TYPE_RAW16 = -1;  // 16 bits as they are

__device__ inline void move_unit(int unit, char* y, const char* x) {
    switch (unit) {
        case 16: *(uint4*)y = *(const uint4*)x; break;
        case 8: *(uint2*)y = *(const uint2*)x; break;
        case 4: *(u32_t*)y = *(const u32_t*)x; break;
        case 2: *(u16_t*)y = *(const u16_t*)x; break;
        default: *y = *x;
    }
}

// --- the same type --------------------------------------------------------------------------------

struct MoveArgs {
    Tensor y;
    Tensor x;
    int unit;
};

// Both tensors have the same loops.
KERNEL(move, MoveArgs, COPY_THREADS) {
    const Tensor& y = args.y;
    const i64_t i = thread_index();
    if (i >= y.n_elements(run)) return;
    const Quotient row = divided(i, y.ne[0].at(run));
    const Row at = fast_row_of(y, row.whole, run);
    char* to = y.at(at.i1, at.i2, at.i3) + row.rest * y.nb[0];
    move_unit(args.unit, to, args.x.at(at.i1, at.i2, at.i3) + row.rest * args.x.nb[0]);
}

// Each has its own.
KERNEL(move_apart, MoveArgs, COPY_THREADS) {
    const i64_t i = thread_index();
    if (i >= min(args.y.n_elements(run), args.x.n_elements(run))) return;
    move_unit(args.unit, element_at(args.y, i, run), element_at(args.x, i, run));
}

struct ConcatArgs {
    Tensor to_a;  // the part of y that a goes to
    Tensor a;
    Tensor to_b;
    Tensor b;
    Count n_before;     // how many of y's dimension a has,
    i64_t before_bytes; // and what a step there is
    int unit;
};

// Blocks with y = 0 copy a, the others b.
KERNEL(concat, ConcatArgs, COPY_THREADS) {
    const bool second = blockIdx.y == 1;
    const Tensor& y = second ? args.to_b : args.to_a;
    const Tensor& x = second ? args.b : args.a;
    const i64_t i = thread_index();
    if (i >= y.n_elements(run)) return;
    const i64_t shift = second ? args.n_before.at(run) * args.before_bytes : 0;
    const Quotient row = divided(i, y.ne[0].at(run));
    const Row at = fast_row_of(y, row.whole, run);
    char* to = y.at(at.i1, at.i2, at.i3) + row.rest * y.nb[0] + shift;
    move_unit(args.unit, to, x.at(at.i1, at.i2, at.i3) + row.rest * x.nb[0]);
}

// y[i3, i2, i1, i0] = x[i3 % n3, i2 % n2, i1 % n1, i0 % n0]
KERNEL(repeat, MoveArgs, COPY_THREADS) {
    const Tensor &y = args.y, &x = args.x;
    const i64_t i = thread_index();
    if (i >= y.n_elements(run)) return;
    const Quotient row = divided(i, y.ne[0].at(run));
    const Row at = fast_row_of(y, row.whole, run);
    const char* from = repeated_at(x, at, run) + row.rest % x.ne[0].at(run) * x.nb[0];
    move_unit(args.unit, y.at(at.i1, at.i2, at.i3) + row.rest * y.nb[0], from);
}

// --- another type ---------------------------------------------------------------------------------

struct ConvertArgs {
    Tensor y;
    Tensor x;
    int y_type;
    int x_type;
};

__device__ inline float load_number(int type, const char* x) {
    return type == TYPE_I32 ? (float)*(const int*)x : load_one(type, x);
}

// i32 are truncated. What they cannot hold is the least of them, as on the CPU.
__device__ inline void store_number(int type, char* y, float v) {
    if (type == TYPE_I32) {
        *(int*)y = fabsf(v) < 2147483648.0f ? (int)v : (int)0x80000000u;
    } else {
        store_one(type, y, v);
    }
}

// Both tensors have the same loops.
KERNEL(convert, ConvertArgs, COPY_THREADS) {
    const Tensor &y = args.y, &x = args.x;
    const Piece piece = piece_of(y, run);
    if (piece.n == 0) return;
    const Row at = fast_row_of(y, piece.row, run);
    const char* from = x.at(at.i1, at.i2, at.i3) + piece.first * x.nb[0];
    char* to = y.at(at.i1, at.i2, at.i3) + piece.first * y.nb[0];
    if (args.x_type == TYPE_I32 || args.y_type == TYPE_I32) {
        for (int i = 0; i < piece.n; ++i) {
            store_number(args.y_type, to + i * y.nb[0], load_number(args.x_type, from + i * x.nb[0]));
        }
    } else {
        float v[PIECE];
        load_piece(args.x_type, from, x.nb[0], piece.n, v);
        store_piece(args.y_type, to, y.nb[0], piece.n, v);
    }
}

// Each has its own.
KERNEL(convert_apart, ConvertArgs, COPY_THREADS) {
    const i64_t i = thread_index();
    if (i >= min(args.y.n_elements(run), args.x.n_elements(run))) return;
    const float v = load_number(args.x_type, element_at(args.x, i, run));
    store_number(args.y_type, element_at(args.y, i, run), v);
}

// --- transposed -----------------------------------------------------------------------------------

constexpr int TILE = 32;

__device__ inline u32_t load_bits(int type, const char* x) {
    return type == TYPE_RAW16 ? *(const u16_t*)x : __float_as_uint(load_number(type, x));
}

__device__ inline void store_bits(int type, char* y, u32_t bits) {
    if (type == TYPE_RAW16) {
        *(u16_t*)y = (u16_t)bits;
    } else {
        store_number(type, y, __uint_as_float(bits));
    }
}

// Neighbours along dimension 0 are neighbours in y, those along dimension 1 in x. A block turns a tile
// of 32 x 32 in shared memory, so that both are accessed in runs of 32 elements.
KERNEL(transpose, ConvertArgs, COPY_THREADS) {
    __shared__ u32_t tile[TILE][TILE + 1];  // a column more: those of a warp are in different banks
    const Tensor &y = args.y, &x = args.x;
    const int n0 = y.ne[0].at(run), n1 = y.ne[1].at(run);
    const Quotient along = divided(blockIdx.x, (n0 + TILE - 1) / TILE);
    const Quotient across = divided(along.whole, (n1 + TILE - 1) / TILE);
    const Quotient plane = divided(across.whole, y.ne[2].at(run));
    if (plane.whole >= y.ne[3].at(run)) return;
    const i64_t first0 = along.rest * TILE, first1 = across.rest * TILE;
    const int lane = threadIdx.x % TILE;
    for (int row = threadIdx.x / TILE; row < TILE; row += COPY_THREADS / TILE) {
        const i64_t i0 = first0 + row, i1 = first1 + lane;
        if (i0 < n0 && i1 < n1) {
            tile[row][lane] = load_bits(args.x_type, x.at(i0, i1, plane.rest, plane.whole));
        }
    }
    __syncthreads();
    for (int row = threadIdx.x / TILE; row < TILE; row += COPY_THREADS / TILE) {
        const i64_t i0 = first0 + lane, i1 = first1 + row;
        if (i0 < n0 && i1 < n1) {
            store_bits(args.y_type, y.at(i0, i1, plane.rest, plane.whole), tile[lane][row]);
        }
    }
}
