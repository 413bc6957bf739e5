// Blocks of quantised types to f32: copies, and rows gathered by indices.
//   grid  a thread for each piece of four elements
// All types in one kernel: the number of the type is uniform in a launch, and what it selects is short.
#include "copy_elements.cuh"
#include "quants.cuh"

// By GGUF's number of the type.
__device__ inline void load_quantized(int type, const char* row, i64_t first, float (&v)[PIECE]) {
    switch (type) {
        case 2: q4_0::load_four(row, first, v); break;
        case 3: q4_1::load_four(row, first, v); break;
        case 6: q5_0::load_four(row, first, v); break;
        case 7: q5_1::load_four(row, first, v); break;
        case 8: q8_0::load_four(row, first, v); break;
        case 10: q2_K::load_four(row, first, v); break;
        case 11: q3_K::load_four(row, first, v); break;
        case 12: q4_K::load_four(row, first, v); break;
        case 13: q5_K::load_four(row, first, v); break;
        case 14: q6_K::load_four(row, first, v); break;
        case 16: iq2_xxs::load_four(row, first, v); break;
        case 17: iq2_xs::load_four(row, first, v); break;
        case 18: iq3_xxs::load_four(row, first, v); break;
        case 19: iq1_s::load_four(row, first, v); break;
        case 20: iq4_nl::load_four(row, first, v); break;
        case 21: iq3_s::load_four(row, first, v); break;
        case 22: iq2_s::load_four(row, first, v); break;
        case 23: iq4_xs::load_four(row, first, v); break;
        case 29: iq1_m::load_four(row, first, v); break;
        case 34: tq1_0::load_four(row, first, v); break;
        case 35: tq2_0::load_four(row, first, v); break;
        case 39: mxfp4::load_four(row, first, v); break;
        case 40: nvfp4::load_four(row, first, v); break;
        case 41: q1_0::load_four(row, first, v); break;
        case 42: q2_0::load_four(row, first, v); break;
    }
}

struct DequantizeArgs {
    Tensor y;
    Tensor x;
    int type;
    int same_shape;
};

KERNEL(dequantize, DequantizeArgs, COPY_THREADS) {
    const Tensor &y = args.y, &x = args.x;
    const Piece piece = piece_of(x, run);
    if (piece.n == 0) return;
    const Row at = fast_row_of(x, piece.row, run);
    float v[PIECE];
    load_quantized(args.type, x.at(at.i1, at.i2, at.i3), piece.first, v);
    if (args.same_shape) {
        char* to = y.at(at.i1, at.i2, at.i3) + piece.first * y.nb[0];
        store_piece(TYPE_F32, to, y.nb[0], PIECE, v);
        return;
    }
    const i64_t first = piece.row * x.ne[0].at(run) + piece.first;
    const i64_t end = y.n_elements(run);
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
        if (first + i < end) f32::store(element_at(y, first + i, run), 0, v[i]);
    }
}

struct GetArgs {
    Tensor y;
    Tensor x;
    Tensor ids;
    int type;
};

// y[:, i, a, b] = x[:, ids[i, a, b], a, b]
KERNEL(get_rows, GetArgs, COPY_THREADS) {
    const Tensor &y = args.y, &x = args.x, &ids = args.ids;
    const Piece piece = piece_of(y, run);
    if (piece.n == 0) return;
    const Row at = fast_row_of(y, piece.row, run);
    const int id = *(const int*)ids.at(at.i1, at.i2, at.i3, 0);
    if (id < 0 || id >= x.ne[1].at(run)) {
        fail(run, id);
        return;
    }
    float v[PIECE];
    load_quantized(args.type, x.at(id, at.i2, at.i3), piece.first, v);
    char* to = y.at(at.i1, at.i2, at.i3) + piece.first * y.nb[0];
    store_piece(TYPE_F32, to, y.nb[0], PIECE, v);
}
