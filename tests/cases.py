"""The conformance cases: one table for every backend.

    y = compute(build(case), backend="reference")      # `build` makes the same bytes every time
    compare(case, compute(build(case), backend="cpu"), y) == ""

Sizes are primes where nothing asks for more (no lucky alignment), and more than 65,535 rows are
there because CUDA's grids end at that many.
"""

from __future__ import annotations

from typing import Any

from tests.build import build
from tests.case import Case, compare, nmse

__all__ = ["CASES", "Case", "build", "compare", "nmse"]

PRIMES = (5, 7, 11, 13)
FLOATS = ("f32", "f16", "bf16")
QUANTIZED = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "nvfp4", "iq4_nl",
    "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "tq1_0", "tq2_0",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s",
)  # fmt: skip
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
WRITABLE = CACHE_TYPES  # by copies of f32
BINARY = ("add", "sub", "mul", "div")
UNARY = (
    "abs", "sgn", "neg", "step", "tanh", "elu", "relu", "sigmoid", "gelu", "gelu_quick",
    "gelu_erf", "silu", "hardswish", "hardsigmoid", "softplus", "floor", "ceil", "round", "trunc",
)  # fmt: skip
GLU = ("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick")
SIZES = (1, 8, 33)  # rows of activations: a token, a small batch, a prompt that fills no tile

ELEMENTWISE = [
    *(Case(op, ne=[PRIMES, PRIMES], types=(t,), span=(0.9, 1.1)) for op in BINARY for t in FLOATS),
    *(Case(op, ne=[(10, 14, 22, 26), PRIMES], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[PRIMES, (5, 1, 1, 1)], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[PRIMES, (1, 7, 1, 13)], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[(4099,), (4099,)], span=(0.9, 1.1)) for op in BINARY),
    *(Case(op, ne=[(3, 70_001), (3, 1)], span=(0.9, 1.1)) for op in ("add", "mul")),
    *(
        Case(op, ne=[PRIMES, PRIMES], layouts=layouts, span=(0.9, 1.1))
        for op in BINARY
        for layouts in (("permuted", "view"), ("view", "permuted"), ("transposed", ""))
    ),
    Case("add", ne=[PRIMES, (5, 7)], types=("f16", "f32")),
    Case("add", ne=[PRIMES, (5, 7)], types=("bf16", "f32")),
    Case("mul", ne=[PRIMES, (5, 7)], types=("f16", "f32")),
    Case("add", ne=[(64, 7, 3), (64, 7, 3)], types=("q8_0", "f32"), max_nmse=1e-4),
    Case("add1", ne=[PRIMES, (1,)]),
    Case("add_id", ne=[(37, 3, 11), (37, 5), (3, 11)]),
    Case("add_id", ne=[(64, 2, 1), (64, 32), (2, 1)]),
    *(Case("sqr", ne=[PRIMES], types=(t,)) for t in FLOATS),
    *(Case("sqrt", ne=[PRIMES], types=(t,), span=(50, 100)) for t in FLOATS),
    *(Case("log", ne=[PRIMES], types=(t,), span=(0.9, 1.1)) for t in FLOATS),
    Case("sqrt", ne=[(131, 3)], span=(-1, 1)),  # NaN below 0
    Case("log", ne=[(131, 3)], span=(-1, 1)),
    *(Case("sin", ne=[PRIMES], types=(t,), span=(-6.5, 6.5)) for t in FLOATS),
    *(Case("cos", ne=[PRIMES], types=(t,), span=(-6.5, 6.5)) for t in FLOATS),
    *(Case("scale", ne=[PRIMES], types=(t,), s=2.5) for t in FLOATS),
    Case("scale", ne=[PRIMES], layouts=("permuted",), s=-0.125),
    Case("scale", ne=[(3, 70_001)], s=2.5),
    Case("scale_bias", ne=[PRIMES], s=2.5, b=-1.75),
    *(Case("clamp", ne=[PRIMES], types=(t,), min=-0.25, max=0.5) for t in FLOATS),
]

ACTIVATIONS = [
    *(Case(op, ne=[PRIMES], types=(t,), span=(-5, 5)) for op in UNARY for t in FLOATS),
    *(Case(op, ne=[(1021,)], span=(-150, 150)) for op in UNARY),
    *(Case(op, ne=[PRIMES], layouts=("view",), span=(-5, 5)) for op in UNARY),
    *(Case(op, ne=[PRIMES], types=(t,), span=(-10, 10)) for op in ("exp", "expm1") for t in FLOATS),
    Case("round", ne=[(257, 3)], span=(-5, 5), ties=True),  # quarters: halves go away from 0
    Case("silu", ne=[(3, 70_001)], span=(-5, 5)),
    *(Case("leaky_relu", ne=[PRIMES], types=(t,), negative_slope=0.1) for t in FLOATS),
    Case("xielu", ne=[PRIMES], span=(-5, 5), alpha_n=0.8, alpha_p=0.8, beta=0.5, eps=-1e-6),
    *(
        Case(op + form, ne=[(14, 11, 3, 2)], types=(t,), span=(-5, 5))
        for op in GLU
        for form in ("", "_swapped")
        for t in ("f32", "f16")
    ),
    *(Case(op + "_split", ne=[PRIMES, PRIMES], span=(-5, 5)) for op in GLU),
    *(Case(op + "_split", ne=[PRIMES, PRIMES], layouts=("view", "")) for op in GLU),
    *(Case(op, ne=[(14, 11, 3, 2)], layouts=("view",)) for op in GLU),
    Case("swiglu_split", ne=[(2048, 5), (2048, 5)], span=(-5, 5)),
    Case("swiglu", ne=[(4, 70_001)], span=(-5, 5)),
    Case("swiglu_oai", ne=[(67, 11), (67, 11)], span=(-9, 9), alpha=1.702, limit=7.0),
]

NORMS = [
    *(
        Case(op, ne=[ne], span=(-10, 10), eps=eps)
        for op in ("rms_norm", "norm", "l2_norm")
        for ne in (PRIMES, (64, 5), (4099, 3), (1, 7))
        for eps in (1e-6, 0.1)
        if (op, ne[0]) != ("norm", 1)  # a variance of exactly 0 leaves rounding to be compared
    ),
    *(
        Case(op, ne=[PRIMES], layouts=(layout,), span=(-10, 10), eps=1e-5)
        for op in ("rms_norm", "norm", "l2_norm")
        for layout in ("permuted", "view")
    ),
    Case("rms_norm", ne=[(32, 70_001)], eps=1e-5),
    Case("group_norm", ne=[(7, 5, 12, 3)], n_groups=4, eps=1e-6),
    Case("group_norm", ne=[(7, 5, 11, 2)], n_groups=4, eps=1e-6),  # groups of 3, 3, 3 and 2
]

PRODUCTS = [
    *(
        Case("mul_mat", ne=[(256, 33), (256, n)], types=(t, "f32"))
        for t in (*FLOATS, *QUANTIZED)
        for n in SIZES
    ),
    *(
        Case("mul_mat", ne=[(2048, 16), (2048, n)], types=(t, "f32"))
        for t in ("f32", "f16", "q4_0", "q8_0", "q4_K", "q6_K")
        for n in SIZES
    ),
    *(
        Case("mul_mat", ne=[(37, 11), (37, n)], types=(t, "f32"))
        for t in FLOATS
        for n in (1, 2, 3, 5)
    ),
    *(
        Case("mul_mat", ne=[(64, 13, a2, a3), (64, 5, a2 * r2, a3 * r3)], types=(t, "f32"))
        for t in ("f32", "f16", "q8_0")
        for a2, a3, r2, r3 in ((1, 1, 4, 1), (2, 1, 3, 2), (2, 3, 1, 1), (3, 2, 5, 1))
    ),
    *(
        Case("mul_mat", ne=[(64, 13, 2, 3), (64, 5, 4, 3)], types=(t, "f32"), layouts=layouts)
        for t in ("f32", "f16", "q8_0")
        for layouts in (("permuted", ""), ("", "permuted"), ("view", "view"))
    ),
    Case("mul_mat", ne=[(64, 13), (64, 5)], layouts=("", "transposed")),
    Case("mul_mat", ne=[(64, 13), (64, 5)], types=("f16", "f16")),
    Case("mul_mat", ne=[(32, 3), (32, 70_001)]),
    Case("mul_mat", ne=[(32, 70_001), (32, 2)], types=("q8_0", "f32")),
    Case("mul_mat", ne=[(1, 7), (1, 5)]),
    *(
        Case("mul_mat_id", ne=[(256, 31, 6), (256, n_rows, n), (3, n)], types=(t, "f32", "i32"))
        for t in ("f32", "f16", "q4_0", "q8_0", "q4_K", "q6_K", "mxfp4")
        for n_rows in (1, 3)
        for n in SIZES
    ),
    *(
        Case("mul_mat_id", ne=[(256, 31, 6), (256, 1, 8), (3, 8)], types=(t, "f32", "i32"))
        for t in ("bf16", *QUANTIZED)
        if t not in ("q4_0", "q8_0", "q4_K", "q6_K", "mxfp4")
    ),
]

ROWS = [
    *(Case("get_rows", ne=[(256, 13), (7,)], types=(t, "i32")) for t in (*FLOATS, *QUANTIZED)),
    *(Case("get_rows", ne=[(37, 11, 3, 2), (6, 3, 2)], types=(t, "i32")) for t in FLOATS),
    Case("get_rows", ne=[(5, 11, 3), (6, 3)], types=("i32", "i32"), span=(-1000, 1000)),
    *(Case("get_rows", ne=[(37, 11, 3), (6, 3)], layouts=(v,)) for v in ("permuted", "view")),
    Case("get_rows", ne=[(2, 3), (70_001,)]),
    *(
        Case("set_rows", ne=[(64, 17, 4, 6), (64, 5, 4, 6), (5, c1, c2)], types=(t, x, i))
        for t in WRITABLE
        for x in ("f32", "f16")
        for i in ("i64", "i32")
        for c1, c2 in ((1, 1), (2, 3))
    ),
    *(Case("set_rows", ne=[(37, 11), (37, 7), (7,)], types=(t, "f32", "i64")) for t in FLOATS),
    Case("set_rows", ne=[(32, 5), (32, 9), (9,)], types=("f16", "f32", "i64"), repeat=True),
    Case("set_rows", ne=[(64, 17, 3), (64, 5, 3), (5,)], types=("f16", "f32", "i64"),
         layouts=("view", "permuted")),
    Case("set_rows", ne=[(64, 17, 3), (64, 5, 3), (5,)], types=("q8_0", "f32", "i64"),
         layouts=("view", "view")),
    Case("set_rows", ne=[(2, 70_001), (2, 69_999), (69_999,)], types=("f16", "f32", "i64")),
    Case("set_rows", ne=[(1, 997), (1, 501), (501,)], types=("f16", "f32", "i64")),  # transposed V
]  # fmt: skip

COPIES = [
    *(Case("cpy", ne=[(64, 6, 3, 2), (64, 3, 6, 2)], types=(a, b)) for a in FLOATS for b in FLOATS),
    *(Case("cpy", ne=[(64, 6, 3), (64, 18)], types=("f32", b)) for b in WRITABLE[3:]),
    *(Case("cpy", ne=[(64, 6, 3), (64, 18)], types=(a, "f32")) for a in WRITABLE[3:]),
    *(Case("cpy", ne=[PRIMES, PRIMES], layouts=(v, w)) for v in ("permuted", "transposed", "view")
      for w in ("", "permuted", "view")),
    Case("cpy", ne=[PRIMES, (7, 5, 13, 11)], types=("f32", "f16"), layouts=("permuted",)),
    Case("cpy", ne=[PRIMES, PRIMES], types=("i32", "f32"), span=(-1000, 1000)),
    Case("cpy", ne=[PRIMES, PRIMES], types=("f32", "i32"), span=(-1000, 1000)),
    *(Case("cont", ne=[PRIMES], types=(t,), layouts=(v,)) for t in (*FLOATS, "i32")
      for v in ("", "permuted", "transposed", "view")),
    Case("cont_2d", ne=[PRIMES], layouts=("permuted",), ne0=55, ne1=91),
    Case("cont", ne=[(64, 5, 7)], types=("q8_0",), layouts=("permuted",)),
    *(Case("dup", ne=[PRIMES], types=(t,), layouts=("permuted",)) for t in FLOATS),
    *(Case("cast", ne=[(64, 5, 7)], layouts=("permuted",), type=t) for t in WRITABLE),
    Case("cast", ne=[(64, 5, 7)], types=("q4_0",), type="f32"),
]  # fmt: skip

ROPE = [
    *(
        Case("rope_ext", ne=[(64, 5, 7, 2)], types=(t,), n_dims=n_dims, mode=mode, factors=factors)
        for t in ("f32", "f16")
        for n_dims in (64, 32)
        for mode in (0, 2)
        for factors in (False, True)
    ),
    *(
        Case("rope_ext", ne=[(64, 5, 7)], mode=mode, factors=factors,
             freq_scale=0.25, ext_factor=1.0, attn_factor=0.9)
        for mode in (0, 2)
        for factors in (False, True)
    ),
    *(Case("rope_ext", ne=[(80, 5, 7)], mode=m, layouts=(v,)) for m in (0, 2)
      for v in ("permuted", "view")),
    *(Case("rope_ext", ne=[(96, 3, 5)], n_dims=20, mode=m, freq_base=5e5) for m in (0, 2)),
    *(Case("rope_ext", ne=[(64, 2, 3)], mode=m, freq_scale=0.5, attn_factor=1.5) for m in (0, 2)),
    # In f32 an angle of 30,000 is known to 0.002: ggml has no better.
    *(Case("rope_ext", ne=[(64, 2, 37)], mode=m, max_pos=30_000, max_nmse=1e-6) for m in (0, 2)),
    Case("rope_ext", ne=[(4, 1, 70_001)], mode=0),
    *(
        Case("rope_ext", ne=[(64, 3, 7, 2)], n_dims=n_dims, mode=mode, sections=sections)
        for mode, n_dims, sections in (
            (8, 64, (16, 8, 8, 0)), (8, 64, (8, 8, 8, 8)), (8, 32, (4, 6, 6, 0)),
            (40, 64, (12, 10, 10, 0)), (40, 64, (20, 6, 6, 0)), (24, 32, (16, 16, 0, 0)),
        )
    ),
]  # fmt: skip

SOFTMAX = [
    *(Case("soft_max", ne=[ne], span=(-10, 10)) for ne in (PRIMES, (1021, 3), (1, 5), (7, 70_001))),
    *(
        Case("soft_max_ext", ne=[(67, 7, 6, 4), (67, 9, h, s)], types=("f32", t),
             span=(-10, 10), scale=0.125, max_bias=bias, mask=mask, sinks=sinks)
        for t in ("f16", "f32")
        for h, s in ((1, 1), (3, 2))
        for bias in (0.0, 8.0)
        for mask in ("random", "dead")
        for sinks in (False, True)
    ),
    *(Case("soft_max_ext", ne=[(33, 5, 4), (33, 5)], types=("f32", "f16"), mask=m, sinks=s)
      for m in ("causal", "all", "holes") for s in (False, True)),
    Case("soft_max_ext", ne=[(1031, 3, 2)], span=(-10, 10), scale=0.5, sinks=True),
    Case("diag_mask_inf", ne=[(13, 11, 5, 3)], n_past=2),
    Case("diag_mask_inf", ne=[(11, 11, 3)], n_past=0),
]  # fmt: skip


def attention(
    size: int, n_query: int, heads: tuple[int, int], n_kv: int, *, n_seq: int = 1,
    size_v: int | None = None, kv: str = "f16", heads_mask: int = 1, rows_mask: int | None = None,
    **params: Any,
) -> Case:  # fmt: skip
    """q [size, n_query, heads[0], n_seq], k and v with heads[1]; a mask where `mask` names one."""
    n_head, n_head_kv = heads
    ne = [
        (size, n_query, n_head, n_seq),
        (size, n_kv, n_head_kv, n_seq),
        (size_v or size, n_kv, n_head_kv, n_seq),
    ]
    if "mask" in params:
        ne.append((n_kv, rows_mask or n_query, heads_mask, n_seq))
    layouts = ("permuted", "permuted", "permuted") if params.pop("cache", False) else ()
    return Case("flash_attn_ext", ne=ne, types=("f32", kv, kv, "f16"), layouts=layouts, **params)


def listed(
    size: int, n_query: int, heads: tuple[int, int], n_max: int, *, n_kv: int = 131,
    n_seq: int = 1, n_stream: int = 1, kv: str = "f16", heads_mask: int = 1, **params: Any,
) -> Case:  # fmt: skip
    """Queries that see lists of up to n_max cells; k and v as rows of a cache lie."""
    n_head, n_head_kv = heads
    cache = (size, n_kv, n_head_kv, n_stream)
    ne = [(size, n_query, n_head, n_seq), cache, cache]
    if "mask" in params:
        ne.append((n_max, n_query, heads_mask, n_seq))
    layouts = ("permuted", "permuted", "permuted")
    types = ("f32", kv, kv, "f16")
    return Case("flash_attn_ext", ne=ne, types=types, layouts=layouts, lists=(n_max, 4), **params)


LISTED = [
    *(listed(64, n, (8, 2), 96, n_seq=s, n_stream=2, kv=kv) for kv in CACHE_TYPES
      for n, s in ((1, 5), (7, 1))),
    *(listed(64, n, h, 131, n_seq=s) for h in ((1, 1), (3, 3), (12, 3), (6, 2), (8, 1))
      for n, s in ((1, 1), (37, 1), (2, 3))),
    listed(65, 3, (2, 2), 67),  # odd head size
    *(listed(64, n, (6, 2), 70, n_seq=s, mask="random", max_bias=8.0, sinks=True)
      for n, s in ((1, 3), (5, 1))),
    *(listed(64, 5, (4, 2), 70, sinks=s, softcap=c) for s in (False, True) for c in (0.0, 10.0)
      if s or c),
    listed(64, 5, (6, 3), 113, n_seq=2, mask="holes", heads_mask=3),
    listed(64, 5, (4, 2), 113, mask="all", sinks=True),
    *(listed(64, n, (4, 2), 700, n_kv=300, n_seq=s, n_stream=3, kv=kv)
      for n, s in ((1, 1), (1, 4), (133, 1)) for kv in ("f16", "q8_0")),
    listed(64, 3, (4, 2), 700, n_kv=300, n_stream=3, mask="holes"),
    listed(64, 3, (4, 2), 300, n_kv=30),  # cells more than once
]  # fmt: skip

ATTENTION = [
    *(attention(d, n, (4, 2), 113, mask="random") for d in (40, 64, 80, 96, 128, 256)
      for n in (1, 3, 33)),
    *(attention(64, n, (8, 2), 96, n_seq=3, kv=kv, mask="random") for kv in CACHE_TYPES
      for n in (1, 19)),
    *(attention(65, 3, (2, 2), 67, kv=kv, mask="random") for kv in FLOATS),  # odd head size
    attention(64, 3, (4, 1), 113, size_v=32, mask="random"),
    attention(192, 5, (2, 1), 96, size_v=128, mask="random"),
    *(attention(64, n, h, 256, mask="causal") for h in ((1, 1), (4, 4), (8, 1), (12, 3), (6, 2))
      for n in (1, 37)),
    *(attention(64, n, (6, 2), 113, n_seq=2, mask="random", max_bias=8.0, sinks=s)
      for n in (1, 5) for s in (False, True)),
    *(attention(64, n, (4, 2), 113, mask="random", softcap=10.0) for n in (1, 5)),
    *(attention(64, n, (4, 2), 113, mask="random", sinks=True, softcap=10.0) for n in (1, 5)),
    *(attention(64, n, (6, 3), 113, n_seq=2, mask="random", heads_mask=3) for n in (1, 5)),
    attention(64, 5, (4, 2), 113, mask="random", rows_mask=64),  # a mask with rows to spare
    *(attention(64, n, (4, 2), 113, sinks=s) for n in (1, 5) for s in (False, True)),  # no mask
    *(attention(64, n, (4, 2), 1024, n_seq=s, mask="tails") for n in (1, 7) for s in (1, 4)),
    *(attention(64, n, (4, 2), 300, mask="holes") for n in (1, 7)),
    *(attention(64, n, (4, 2), 300, n_seq=2, mask=m, sinks=s)
      for n in (1, 7) for m in ("dead", "all") for s in (False, True)),
    *(attention(64, n, (4, 2), 300, n_seq=3, kv=kv, mask="tails", poison=True)
      for n in (1, 7) for kv in ("f32", "f16", "bf16", "q8_0", "q4_0")),
    *(attention(64, n, (4, 2), 64, kv=kv, mask="all", poison=True)
      for n in (1, 5) for kv in ("f16", "q8_0")),
    *(attention(64, n, (4, 2), 113, n_seq=2, kv=kv, cache=True, mask="random")
      for n in (1, 5) for kv in ("f16", "q8_0")),  # as rows of a cache lie: heads inside tokens
    attention(64, 1, (2, 1), 1, mask="random"),
    attention(64, 2, (2, 1), 4099, mask="causal"),
]  # fmt: skip

SHAPES = [
    *(Case("concat", ne=[PRIMES, tuple(n + 2 * (i == dim) for i, n in enumerate(PRIMES))],
           types=(t,), dim=dim) for dim in range(4) for t in ("f32", "f16", "i32")),
    *(Case("concat", ne=[PRIMES, PRIMES], layouts=v, dim=1)
      for v in (("permuted", ""), ("view", "transposed"))),
    *(Case("repeat_4d", ne=[PRIMES], types=(t,), ne0=10, ne1=7, ne2=33, ne3=26)
      for t in ("f32", "f16", "i32")),
    Case("repeat_4d", ne=[PRIMES], layouts=("permuted",), ne0=5, ne1=14, ne2=11, ne3=13),
    Case("pad", ne=[PRIMES], p0=1, p1=0, p2=2, p3=3),
    Case("pad_ext", ne=[PRIMES], layouts=("permuted",),
         lp0=1, rp0=2, lp1=0, rp1=1, lp2=2, rp2=0, lp3=1, rp3=1),
    Case("arange", ne=[], start=-1.5, stop=20.0, step=0.75),
]  # fmt: skip

REDUCTIONS = [
    *(Case(op, ne=[ne], span=(-0.9, 1.1)) for op in ("sum", "sum_rows", "mean", "cumsum")
      for ne in (PRIMES, (1021, 3), (1, 7))),
    *(Case(op, ne=[PRIMES], layouts=(v,)) for op in ("sum", "sum_rows", "mean", "cumsum")
      for v in ("permuted", "view")),
    Case("sum_rows", ne=[(3, 70_001)]),
    *(Case("argmax", ne=[ne]) for ne in ((37, 11), (4099, 2), (1, 3), (3, 70_001))),
    Case("argmax", ne=[(37, 11)], ties=True),
    *(Case("argsort", ne=[ne], order=o, ties=t) for ne in (PRIMES, (1021, 3), (1, 5))
      for o in (0, 1) for t in (False, True)),
    *(Case("top_k", ne=[(n, 5)], k=k, ties=t) for n, k in ((37, 1), (37, 8), (37, 37), (4099, 40))
      for t in (False, True)),
    Case("argsort", ne=[(3, 70_001)], order=1),
]  # fmt: skip

RECURRENT = [
    *(Case("ssm_conv", ne=[(k - 1 + n, 37, s), (k, 37)]) for k in (3, 4) for n in (1, 8, 33)
      for s in (1, 3)),
    Case("ssm_conv", ne=[(36, 37, 3), (4, 37)], layouts=("view", "view")),
    *(Case("ssm_conv", ne=[(c, 9), (k, c), (k, n)], types=("f32", "f32", "i32"))
      for k in (1, 3, 4) for n in (1, 8, 33) for c in (5, 37, 64, 150)),
    Case("ssm_conv", ne=[(37, 9), (4, 37), (4, 7)], types=("f32", "f32", "i32"),
         layouts=("view", "view")),
    Case("gated_linear_attn", ne=[(16, 3, 8)] * 4 + [(768, 2)], scale=0.5),
    Case("gated_linear_attn", ne=[(64, 2, 7)] * 4 + [(8192, 1)], scale=0.125),
    *(Case("pool_2d", ne=[(12, 11, 3, 2)], pool=o, k0=3, k1=2, s0=2, s1=3, p0=1, p1=p)
      for o in (0, 1) for p in (0, 1)),
]  # fmt: skip

CASES: list[Case] = [
    *ELEMENTWISE,
    *ACTIVATIONS,
    *NORMS,
    *PRODUCTS,
    *ROWS,
    *COPIES,
    *ROPE,
    *SOFTMAX,
    *ATTENTION,
    *LISTED,
    *SHAPES,
    *REDUCTIONS,
    *RECURRENT,
]
