"""How a backend rounds the activations of products before it multiplies them."""

from __future__ import annotations

from enum import Enum


class Rounding(Enum):
    """What becomes of x in a product with weights. Sums are in f32 with every one of them.

    F32      x is used as it is
    F16      rounded to f16
    BF16     rounded to bf16
    BF16X2   rounded to bf16, plus what that leaves, rounded to bf16
    INT8X32  blocks of 32: d = max|x| / 127 in f32, q = x * (127 / max|x|) to the nearest whole
             number, x becomes d * q
    Q8_0     as INT8X32, with d rounded to f16: ggml's type of that name

    Attention with F16 takes k and v as f16, and rounds q, and weights before they meet v, to 11
    significant bits.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    BF16X2 = "two bf16"
    INT8X32 = "int8 by 32"
    Q8_0 = "q8_0"
