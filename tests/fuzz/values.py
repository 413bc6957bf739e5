"""Numbers and texts at which programs break."""

from __future__ import annotations

import random
from typing import Any

INTEGERS: list[int] = sorted(
    {0, 1, 2, 3, -1, -2, 24, 32, 63, 65, 100, 1000, 10**6, 10**9}
    | {sign * 2**n + d for n in (7, 8, 15, 16, 20, 24, 26, 31, 32, 33, 40, 53, 61, 62, 63)
       for d in (-1, 0, 1) for sign in (1, -1)}
    | {2**64 - 1, 2**64 - 8, 2**64 - 32, 2**64, 2**70}
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 1e-30, 1e-45, 3.4e38, -3.4e38, 1e300, 1e6,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", " ", "a", "\n", "a\nb", "\r\n", "\t", "\0", "a\0b", "\x1b[31mred", "\x7f", "\u2028",
    "\u202e", "\ufeff", "\ud800", "\udcff\udcfe", "é", "ß", "▁", "\u0301", "日本語",
    "😀🦙", "\U0010ffff", "%s%n", "{0}", "{{a}}", "../../etc/passwd", "-1", "1e999", "nan", "NULL",
    "<s>", "</s>", "<unk>", "<0x00>", "<0xZZ>", "<|im_end|>", "Ġ", "Ġ Ġ", "general.architecture",
)  # fmt: skip
LENGTHS = (2, 16, 255, 256, 4096, 65_535, 65_536, 10**5, 10**6)


def integer(rng: random.Random, bits: int = 64) -> int:
    """A number that is mostly one of INTEGERS, as one of so many bits."""
    if rng.random() < 0.7:
        return rng.choice(INTEGERS) % (1 << bits)
    return rng.getrandbits(rng.randint(1, bits))


def text(rng: random.Random) -> str:
    """A text, odd ones among them; bytes that are no UTF-8 are lone surrogates."""
    chosen = rng.choice(TEXTS)
    return chosen if rng.random() < 0.7 else chosen + rng.choice(TEXTS) + rng.choice(TEXTS)


def number(rng: random.Random) -> float | int:
    """A whole number or a float, sensible or not."""
    return rng.choice(FLOATS) if rng.random() < 0.4 else rng.choice(INTEGERS)


def anything(rng: random.Random) -> Any:
    """A value of any of JSON's types."""
    make = rng.choice((number, text, lambda rng: None, lambda rng: rng.random() < 0.5, _several))
    return make(rng)


def _several(rng: random.Random) -> Any:
    values = [number(rng) for _ in range(rng.randint(0, 3))]
    return values if rng.random() < 0.5 else {text(rng): value for value in values}
