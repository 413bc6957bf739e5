// y = act(gate) * up, of two tensors or of the halves of the rows of one: f32 and f16 by way of f32.
//   rows of any strides    grid: a thread for each piece of y    bandwidth-bound
#include "elementwise.cuh"
#include "glu.cuh"

constexpr int THREADS = 256;

struct Args {
    Tensor y;
    Tensor a;  // gates, or both halves
    Tensor b;  // address 0 if a has both
    int glu;
    int type;
    int swapped;  // the second half of a is the gate
    float alpha;
    float limit;
};

KERNEL(glu, Args, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    const i64_t size = size_of(args.type);
    const i64_t half = args.y.ne[0].at(run) * size;
    const i64_t at = piece.first * size;
    const char* first = args.a.at(row.i1, row.i2, row.i3) + at;
    const char* second = args.b.data == nullptr ? first + half
                                                : args.b.at(row.i1, row.i2, row.i3) + at;
    float gate[PIECE], up[PIECE];
    load_piece(args.type, args.swapped ? second : first, size, piece.n, gate);
    load_piece(args.type, args.swapped ? first : second, size, piece.n, up);
    for (int i = 0; i < PIECE; ++i) {
        gate[i] = gated(args.glu, gate[i], up[i], args.alpha, args.limit);
    }
    store_piece(args.type, args.y.at(row.i1, row.i2, row.i3) + at, size, piece.n, gate);
}
