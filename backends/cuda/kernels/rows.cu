// Rows gathered and scattered by indices: plain types. Bandwidth-bound.
//   grid  a thread for each piece of four elements; in reset_owners for each owner, in claim_rows for
//         each index
#include "set_rows.cuh"

struct GetArgs {
    Tensor y;
    Tensor x;
    Tensor ids;
    int type;  // of x; i32 are moved as f32
};

// y[:, i, a, b] = x[:, ids[i, a, b], a, b] as f32
KERNEL(get_rows, GetArgs, SET_THREADS) {
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
    const char* from = x.at(id, at.i2, at.i3) + piece.first * x.nb[0];
    load_piece(args.type, from, x.nb[0], piece.n, v);
    store_piece(TYPE_F32, y.at(at.i1, at.i2, at.i3) + piece.first * y.nb[0], y.nb[0], piece.n, v);
}

// Pieces of rows of floats to rows of floats.
struct WritePiece {
    static constexpr int LANES = 1;

    __device__ static void write(
        const SetArgs& args, const char* x, char* y, int part, const Run& run
    ) {
        const i64_t first = (i64_t)part * PIECE;
        const int n = min((int)PIECE, (int)(args.x.ne[0].at(run) - first));
        const int x_size = size_of(args.x_type), y_size = size_of(args.y_type);
        float v[PIECE];
        load_piece(args.x_type, x + first * x_size, x_size, n, v);
        store_piece(args.y_type, y + first * y_size, y_size, n, v);
    }
};

__device__ inline int pieces_of_row(const SetArgs& args, const Run& run) {
    return (args.x.ne[0].at(run) + PIECE - 1) / PIECE;
}

KERNEL(set_rows_few, SetArgs, SET_THREADS) {
    set_few<WritePiece>(args, pieces_of_row(args, run), run);
}

KERNEL(set_rows_owned, SetArgs, SET_THREADS) {
    set_owned<WritePiece>(args, pieces_of_row(args, run), run);
}

// --- the last row of each index -------------------------------------------------------------------

KERNEL(reset_owners, SetArgs, SET_THREADS) {
    const i64_t i = (i64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.owners.n_bytes / 4) ((int*)args.owners.data)[i] = -1;
}

KERNEL(claim_rows, SetArgs, SET_THREADS) {
    const Tensor& ids = args.ids;
    const i64_t i = (i64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= ids.n_elements(run)) return;
    const Quotient list = divided(i, ids.ne[0].at(run));
    const Row at = fast_row_of(ids, list.whole, run);
    const i64_t id = index_at(args, list.rest, at.i1, at.i2);
    if (id < 0 || id >= args.y.ne[1].at(run)) {
        fail(run, id);
    } else {
        atomicMax(owner_of(args, list.whole, id), (int)list.rest);
    }
}
