// y = a (op) b, element by element, b repeated to the shape of a; y has the type of a.
//   a, b, y  f32, f16 and bf16 by way of f32, any strides    grid: a thread for each piece of y
//   bandwidth-bound
#include "elementwise.cuh"

constexpr int THREADS = 256;

// In the order of elementwise.py.
enum Operation { ADD, SUB, MUL, DIV };

struct BinaryArgs {
    Tensor y;
    Tensor a;
    Tensor b;
    int operation;
    int type;
    int b_type;
};

__device__ static float combine(int operation, float a, float b) {
    switch (operation) {
        case ADD: return a + b;
        case SUB: return a - b;
        case MUL: return a * b;
        default: return a / b;
    }
}

KERNEL(binary, BinaryArgs, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    const i64_t a_nb0 = args.a.nb[0], b_nb0 = args.b.nb[0], y_nb0 = args.y.nb[0];
    const int first = piece.first;
    float a[PIECE], b[PIECE];
    load_piece(args.type, args.a.at(row.i1, row.i2, row.i3) + first * a_nb0, a_nb0, piece.n, a);
    const char* b_row = repeated_at(args.b, row, run);
    const int b_length = args.b.ne[0].at(run);
    if (b_length == 1) {
        const float v = load_one(args.b_type, b_row);
        for (int i = 0; i < PIECE; ++i) b[i] = v;
    } else if (b_length == args.y.ne[0].at(run)) {
        load_piece(args.b_type, b_row + first * b_nb0, b_nb0, piece.n, b);
    } else {
        for (int i = 0; i < PIECE; ++i) {
            b[i] = load_one(args.b_type, b_row + ((i64_t)first + i) % b_length * b_nb0);
        }
    }
    for (int i = 0; i < PIECE; ++i) a[i] = combine(args.operation, a[i], b[i]);
    store_piece(args.type, args.y.at(row.i1, row.i2, row.i3) + first * y_nb0, y_nb0, piece.n, a);
}

struct AddIdArgs {
    Tensor y;
    Tensor a;
    Tensor b;
    Tensor ids;
};

// y[:, u, t] = a[:, u, t] + b[:, ids[u, t]], all f32
KERNEL(add_id, AddIdArgs, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    const int id = *(const int*)args.ids.at(row.i1, row.i2, 0, 0);
    if (id < 0 || id >= args.b.ne[1].at(run)) return fail(run, id);
    const i64_t a_nb0 = args.a.nb[0], b_nb0 = args.b.nb[0], y_nb0 = args.y.nb[0];
    const int first = piece.first;
    float a[PIECE], b[PIECE];
    load_piece(TYPE_F32, args.a.at(row.i1, row.i2, 0) + first * a_nb0, a_nb0, piece.n, a);
    load_piece(TYPE_F32, args.b.at(id, 0, 0) + first * b_nb0, b_nb0, piece.n, b);
    for (int i = 0; i < PIECE; ++i) a[i] += b[i];
    store_piece(TYPE_F32, args.y.at(row.i1, row.i2, 0) + first * y_nb0, y_nb0, piece.n, a);
}
