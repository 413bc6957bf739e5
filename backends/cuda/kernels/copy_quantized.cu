// Blocks of quantised types to f32: copies, and rows gathered by indices.
//   grid  a thread for each piece of four elements
// All types in one kernel: the number of the type is uniform in a launch, and what it selects is short.
#include "copy_elements.cuh"
#include "quants.cuh"

// A piece of a row from element `first` on. It has one scale, and its codes are one word.
template <class Q>
__device__ inline void load_codes(const char* row, i64_t first, float (&v)[PIECE]) {
    const u8_t* block = (const u8_t*)row + first / Q::BLOCK * Q::BYTES;
    const int at = (int)(first % Q::BLOCK);
    const Scale scale = Q::scale(block, at / Q::GROUP);
    const u32_t codes = Q::codes(block, at / PIECE);
    for (int i = 0; i < PIECE; ++i) {
        const float code = (float)(i8_t)(codes >> 8 * i);
        v[i] = Q::OFFSET ? scale.d * code + scale.m : scale.d * code;
    }
}

// By GGUF's number of the type.
__device__ inline void load_quantized(int type, const char* row, i64_t first, float (&v)[PIECE]) {
    switch (type) {
        case 2: load_codes<q4_0>(row, first, v); break;
        case 3: load_codes<q4_1>(row, first, v); break;
        case 6: load_codes<q5_0>(row, first, v); break;
        case 7: load_codes<q5_1>(row, first, v); break;
        case 8: load_codes<q8_0>(row, first, v); break;
        case 10: load_codes<q2_K>(row, first, v); break;
        case 11: load_codes<q3_K>(row, first, v); break;
        case 12: load_codes<q4_K>(row, first, v); break;
        case 13: load_codes<q5_K>(row, first, v); break;
        case 14: load_codes<q6_K>(row, first, v); break;
        case 16: load_codes<iq2_xxs>(row, first, v); break;
        case 17: load_codes<iq2_xs>(row, first, v); break;
        case 18: load_codes<iq3_xxs>(row, first, v); break;
        case 19: load_codes<iq1_s>(row, first, v); break;
        case 20: load_codes<iq4_nl>(row, first, v); break;
        case 21: load_codes<iq3_s>(row, first, v); break;
        case 22: load_codes<iq2_s>(row, first, v); break;
        case 23: load_codes<iq4_xs>(row, first, v); break;
        case 29: load_codes<iq1_m>(row, first, v); break;
        case 34: load_codes<tq1_0>(row, first, v); break;
        case 35: load_codes<tq2_0>(row, first, v); break;
        case 39: load_codes<mxfp4>(row, first, v); break;
        case 40: load_codes<nvfp4>(row, first, v); break;
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
