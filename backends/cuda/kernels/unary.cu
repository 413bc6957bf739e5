// y = f(x), element by element: f32, f16 and bf16 by way of f32.
//   x, y  any strides    grid: a thread for each piece    moves every element once: bandwidth-bound
#include "elementwise.cuh"
#include "unary_functions.cuh"

constexpr int THREADS = 256;

// In the order of unary.py.
enum Function {
    SQR, SQRT, LOG, SIN, COS, ABS, SGN, NEG, STEP, TANH, ELU, RELU, SIGMOID, GELU, GELU_QUICK,
    GELU_ERF, SILU, HARDSWISH, HARDSIGMOID, EXP, EXPM1, SOFTPLUS, FLOOR, CEIL, ROUND, TRUNC, SCALE,
    CLAMP, LEAKY_RELU, XIELU,
};

struct Args {
    Tensor y;
    Tensor x;
    int function;
    int type;
    float p0;  // parameters of the function, in the order of its op
    float p1;
    float p2;
    float p3;
};

__device__ static float xielu(float x, float alpha_n, float alpha_p, float beta, float eps) {
    if (x > 0.0f) return fmaf(x, beta, x * x * alpha_p);
    return fmaf(x, beta, (expm1f(at_most(x, eps)) - x) * alpha_n);
}

__device__ static float apply(const Args& args, float x) {
    switch (args.function) {
        case SQR: return x * x;
        case SQRT: return sqrtf(x);
        case LOG: return logf(x);
        case SIN: return sinf(x);
        case COS: return cosf(x);
        case ABS: return fabsf(x);
        case SGN: return sgn(x);
        case NEG: return -x;
        case STEP: return x > 0.0f ? 1.0f : 0.0f;
        case TANH: return tanhf(x);
        case ELU: return elu(x);
        case RELU: return relu(x);
        case SIGMOID: return sigmoid(x);
        case GELU: return gelu(x);
        case GELU_QUICK: return gelu_quick(x);
        case GELU_ERF: return gelu_erf(x);
        case SILU: return silu(x);
        case HARDSWISH: return x * hardsigmoid(x);
        case HARDSIGMOID: return hardsigmoid(x);
        case EXP: return expf(x);
        case EXPM1: return expm1f(x);
        case SOFTPLUS: return softplus(x);
        case FLOOR: return floorf(x);
        case CEIL: return ceilf(x);
        case ROUND: return roundf(x);  // halves away from 0
        case TRUNC: return truncf(x);
        case SCALE: return fmaf(x, args.p0, args.p1);
        case CLAMP: return at_most(at_least(x, args.p0), args.p1);
        case LEAKY_RELU: return x > 0.0f ? x : x * args.p0;
        default: return xielu(x, args.p0, args.p1, args.p2, args.p3);
    }
}

KERNEL(unary, Args, THREADS) {
    const Piece piece = piece_of(args.y, run);
    if (piece.n == 0) return;
    const Row row = fast_row_of(args.y, piece.row, run);
    const i64_t x_nb0 = args.x.nb[0], y_nb0 = args.y.nb[0];
    float v[PIECE];
    load_piece(args.type, args.x.at(row.i1, row.i2, row.i3) + piece.first * x_nb0, x_nb0, piece.n, v);
    // The code of the functions is there once: numbers rotate through v[0].
#pragma unroll 1
    for (int i = 0; i < PIECE; ++i) {
        const float y = apply(args, v[0]);
        v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = y;
    }
    char* y = args.y.at(row.i1, row.i2, row.i3) + piece.first * y_nb0;
    store_piece(args.type, y, y_nb0, piece.n, v);
}
