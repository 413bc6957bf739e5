// Tensors made, padded, shifted and cut: each element of y is one of x, or a number. Bandwidth-bound.
//   x  any strides, f32 where not said otherwise    grid: a thread for each piece of y
#include "elementwise.cuh"

constexpr int THREADS = 256;

// y's elements from their coordinates: value(row, i0).
template <class Value>
__device__ static void make(const Tensor& y, int type, const Run& run, Value value) {
    const Piece piece = piece_of(y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(y, piece.row, run);
    float v[PIECE];
    for (int i = 0; i < PIECE; ++i) v[i] = i < piece.n ? value(row, piece.first + i) : 0.0f;
    const i64_t nb0 = y.nb[0];
    store_piece(type, y.at(row.i1, row.i2, row.i3) + piece.first * nb0, nb0, piece.n, v);
}

__device__ static float element(const Tensor& x, i64_t i0, i64_t i1, i64_t i2, i64_t i3) {
    return f32::load(x.at(i0, i1, i2, i3), 0);
}

// i modulo n, from 0 to n - 1 for a negative i too.
__device__ static i64_t wrapped(i64_t i, int n) {
    if (0 <= i && i < n) return i;
    const i64_t rest = i % n;
    return rest < 0 ? rest + n : rest;
}

// --- made -----------------------------------------------------------------------------------------

struct FillArgs {
    Tensor y;
    int type;
    float c;
};

// y[i] = c, f32 or f16
KERNEL(fill, FillArgs, THREADS) {
    make(args.y, args.type, run, [&](Row, int) { return args.c; });
}

struct ArangeArgs {
    Tensor y;
    double start;
    double step;
};

// y[i] = start + step * i
KERNEL(arange, ArangeArgs, THREADS) {
    make(args.y, TYPE_F32, run, [&](Row, int i) { return (float)(args.start + args.step * i); });
}

// --- padded and shifted ---------------------------------------------------------------------------

struct PadArgs {
    Tensor y;
    Tensor x;
    i64_t before[4];
    int circular;
};

// x with zeros around it, or as if it went on periodically
KERNEL(pad, PadArgs, THREADS) {
    const Tensor& x = args.x;
    const int n0 = x.ne[0].at(run), n1 = x.ne[1].at(run);
    const int n2 = x.ne[2].at(run), n3 = x.ne[3].at(run);
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        const i64_t i0 = i - args.before[0], i1 = row.i1 - args.before[1];
        const i64_t i2 = row.i2 - args.before[2], i3 = row.i3 - args.before[3];
        if (args.circular) {
            return element(x, wrapped(i0, n0), wrapped(i1, n1), wrapped(i2, n2), wrapped(i3, n3));
        }
        const bool inside = 0 <= i0 && i0 < n0 && 0 <= i1 && i1 < n1 && 0 <= i2 && i2 < n2 &&
                            0 <= i3 && i3 < n3;
        return inside ? element(x, i0, i1, i2, i3) : 0.0f;
    });
}

struct ReflectArgs {
    Tensor y;
    Tensor x;
    int p0;
};

// a mirror image, a row of x, a mirror image
KERNEL(pad_reflect_1d, ReflectArgs, THREADS) {
    const int last = args.x.ne[0].at(run) - 1;
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        const int i0 = abs(i - args.p0);
        return element(args.x, i0 <= last ? i0 : 2 * last - i0, row.i1, row.i2, row.i3);
    });
}

struct RollArgs {
    Tensor y;
    Tensor x;
    i64_t shift[4];
};

// y[(i + shift) % n] = x[i], in every dimension
KERNEL(roll, RollArgs, THREADS) {
    const Tensor& x = args.x;
    const int n0 = x.ne[0].at(run), n1 = x.ne[1].at(run);
    const int n2 = x.ne[2].at(run), n3 = x.ne[3].at(run);
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        return element(x, wrapped(i - args.shift[0], n0), wrapped(row.i1 - args.shift[1], n1),
                       wrapped(row.i2 - args.shift[2], n2), wrapped(row.i3 - args.shift[3], n3));
    });
}

// --- parts of matrices ----------------------------------------------------------------------------

struct DiagArgs {
    Tensor y;
    Tensor x;
};

// y[j, i] = x[i] where j = i, else 0
KERNEL(diag, DiagArgs, THREADS) {
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        return i == row.i1 ? element(args.x, i, 0, row.i2, row.i3) : 0.0f;
    });
}

struct TriangleArgs {
    Tensor y;
    Tensor x;
    i64_t shift;
    int upper;    // kept is i0 >= i1 + shift, else i0 < i1 + shift
    float other;  // what the rest becomes
};

// a triangle of each matrix; also masks above a diagonal
KERNEL(triangle, TriangleArgs, THREADS) {
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        const bool is_upper = i >= row.i1 + args.shift;
        return is_upper == (bool)args.upper ? element(args.x, i, row.i1, row.i2, row.i3)
                                            : args.other;
    });
}

// --- windows and positions of images ---------------------------------------------------------------

struct WindowArgs {
    Tensor y;
    Tensor x;
    int w;
};

// windows of an image: y[c, i, j, py * npx + px] = x[c, px * w + i, py * w + j], 0 beyond it
KERNEL(win_part, WindowArgs, THREADS) {
    const int width = args.x.ne[1].at(run), height = args.x.ne[2].at(run);
    const int n_across = (width + args.w - 1) / args.w;
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        const int down = row.i3 / n_across, across = row.i3 - down * n_across;
        const i64_t i1 = (i64_t)across * args.w + row.i1, i2 = (i64_t)down * args.w + row.i2;
        return i1 < width && i2 < height ? element(args.x, i, i1, i2, 0) : 0.0f;
    });
}

// the image of such windows
KERNEL(win_unpart, WindowArgs, THREADS) {
    const int n_across = (args.y.ne[1].at(run) + args.w - 1) / args.w;
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        const int across = row.i1 / args.w, down = row.i2 / args.w;
        return element(args.x, i, row.i1 - across * args.w, row.i2 - down * args.w,
                       (i64_t)down * n_across + across);
    });
}

struct RelPosArgs {
    Tensor y;
    Tensor x;
    int type;
};

// y[c, k, q] = x[c, n - 1 - k + q], f32 or f16
KERNEL(get_rel_pos, RelPosArgs, THREADS) {
    const int n = args.y.ne[1].at(run);
    make(args.y, args.type, run, [&](Row row, int i) {
        return load_one(args.type, args.x.at(i, n - 1 - row.i1 + row.i2, 0, 0));
    });
}

struct AddRelPosArgs {
    Tensor y;
    Tensor a;
    Tensor pw;
    Tensor ph;
};

// y[h * n + w, i, p] = a[h * n + w, i, p] + pw[w, i, p] + ph[h, i, p]; pw and ph without gaps
KERNEL(add_rel_pos, AddRelPosArgs, THREADS) {
    const int n = args.pw.ne[0].at(run);
    const int n_rows = args.a.ne[1].at(run);
    make(args.y, TYPE_F32, run, [&](Row row, int i) {
        const int h = i / n, w = i - h * n;
        const i64_t at = (row.i1 + (i64_t)n_rows * row.i2) * n;
        const float sum = element(args.a, i, row.i1, row.i2, 0) + f32::load(args.pw.data, at + w);
        return sum + f32::load(args.ph.data, at + h);
    });
}
