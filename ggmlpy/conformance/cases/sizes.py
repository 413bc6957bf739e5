"""Sizes, types and names of functions that families of cases share.

Sizes are primes where nothing asks for more (no lucky alignment), and more than 65,535 rows are
there because CUDA's grids end at that many.
"""

from __future__ import annotations

PRIMES = (5, 7, 11, 13)
FLOATS = ("f32", "f16", "bf16")
QUANTIZED = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "nvfp4", "iq4_nl",
    "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "tq1_0", "tq2_0",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s",
    "q1_0", "q2_0",
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
EDGES = (
    1,
    2,
    3,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    129,
    255,
    257,
    1025,
)  # of vectors, blocks

Shape4 = tuple[int, int, int, int]
