// Products of fragments, for the tests of mma.cuh and async.cuh.
#include "mma.cuh"

struct Args {
    Tensor y;
    Tensor x;
    int n;
};

// x: the registers of a, b and d of each lane, one lane after another; y: those of d.
template <int N_A, int N_B, class T, class F>
__device__ static void multiply(const Args& args, F f) {
    const u32_t* x = (const u32_t*)args.x.data + threadIdx.x * (N_A + N_B + 4);
    T* y = (T*)args.y.data + threadIdx.x * 4;
    u32_t a[N_A], b[N_B];
    T d[4];
    for (int i = 0; i < N_A; ++i) a[i] = x[i];
    for (int i = 0; i < N_B; ++i) b[i] = x[N_A + i];
    for (int i = 0; i < 4; ++i) d[i] = ((const T*)x)[N_A + N_B + i];
    f(d, a, b);
    for (int i = 0; i < 4; ++i) y[i] = d[i];
}

KERNEL(f16_k16, Args, 32) {
    multiply<4, 2, float>(args, [](float (&d)[4], u32_t (&a)[4], u32_t (&b)[2]) { mma_f16(d, a, b); });
}

KERNEL(bf16_k16, Args, 32) {
    multiply<4, 2, float>(args, [](float (&d)[4], u32_t (&a)[4], u32_t (&b)[2]) { mma_bf16(d, a, b); });
}

KERNEL(s8_k32, Args, 32) {
    multiply<4, 2, int>(args, [](int (&d)[4], u32_t (&a)[4], u32_t (&b)[2]) { mma_s8_k32(d, a, b); });
}

KERNEL(s8_k16, Args, 32) {
    multiply<2, 1, int>(args, [](int (&d)[4], u32_t (&a)[2], u32_t (&b)[1]) { mma_s8_k16(d, a, b); });
}

// x: a 16 x 16 matrix of 16 bits; y: what each lane gets, of which n is the kind of load.
KERNEL(matrices, Args, 32) {
    __shared__ __align__(16) u16_t tile[16][16];
    const u16_t* x = (const u16_t*)args.x.data;
    u32_t* y = (u32_t*)args.y.data + threadIdx.x * 4;
    const int lane = threadIdx.x;
    copy_async_16(&tile[lane / 2][lane % 2 * 8], &x[lane * 8]);
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    const u16_t* row = &tile[lane % 16][lane / 16 * 8];
    u32_t r[4], half[2];
    if (args.n == 0) ldmatrix_x4(r, row);
    if (args.n == 1) ldmatrix_x4_trans(r, row);
    if (args.n == 2) ldmatrix_x2(half, row);
    if (args.n == 3) ldmatrix_x2_trans(half, row);
    for (int i = 0; i < 4; ++i) y[i] = args.n < 2 ? r[i] : i < 2 ? half[i] : 0;
}

// y[i] = x[i] for i < n, else 0, through shared memory by two groups of copies
KERNEL(copied, Args, 64) {
    __shared__ __align__(16) float first[256];
    __shared__ __align__(16) float second[256];
    const float* x = (const float*)args.x.data;
    const int i = threadIdx.x * 4;
    copy_async_16_zfill(&first[i], &x[i], i + 4 <= args.n);
    copy_async_commit();
    for (int j = 0; j < 4; ++j) copy_async_4(&second[i + j], &x[i + j]);
    copy_async_commit();
    copy_async_wait<1>();
    float* y = (float*)args.y.data;
    for (int j = 0; j < 4; ++j) y[i + j] = first[i + j];
    copy_async_wait<0>();
    for (int j = 0; j < 4; ++j) y[256 + i + j] = second[i + j];
}
