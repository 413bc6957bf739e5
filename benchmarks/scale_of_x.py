"""What rounding x to int8 adds to the error of a product: a scale for 32 elements of x, or for 256.

    python benchmarks/scale_of_x.py
    python benchmarks/scale_of_x.py --types q4_K,q5_K,q6_K --rows 512

Weights are Gaussian, and quantised as by `ggmlpy quantize`. They are multiplied in float64 by x
as it is, and by x rounded as the CPU backend rounds it (backends/cpu/formats/activations.py): the
largest of a block becomes 127. Shown is the root mean square of the difference, in units of that of
the product. The last line is what quantising the same weights to q8_0 changes in them, in the same
unit. Random values are seeded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.types import TYPES
from ggmlpy.quantize.rows import can_quantize, quantize_rows

K = 4096  # elements of a row
BLOCKS = (32, 256)
CHANNELS = 128  # one of which is an outlier

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]


def gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.standard_normal(shape)


def with_outliers(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Some channels of x are 20 times as large as the others, in every row."""
    x = rng.standard_normal(shape)
    x[:, ::CHANNELS] *= 20
    return x


def gated(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """What the down matrix of a gated feed-forward multiplies."""
    a, b = rng.standard_normal((2, *shape))
    x: Floats = a / (1 + np.exp(-a)) * b
    return x


X: dict[str, Draw] = {
    "Gaussian": gaussian,
    "Student's t, 5 degrees of freedom": lambda rng, shape: rng.standard_t(5, shape),
    "Student's t, 3 degrees of freedom": lambda rng, shape: rng.standard_t(3, shape),
    f"Gaussian, one channel of {CHANNELS} times 20": with_outliers,
    "silu(a) b, both Gaussian": gated,
}


def rounded(x: Floats, n: int) -> Floats:
    """x as int8 with a scale for `n` elements."""
    blocks = x.reshape(-1, n)
    d: Floats = np.abs(blocks).max(axis=1, keepdims=True) / 127
    codes: Floats = np.rint(np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0))
    return (codes * d).reshape(x.shape)


def relative_error(got: Floats, want: Floats) -> float:
    """Of root mean squares."""
    return float(np.sqrt(np.square(got - want).mean() / np.square(want).mean()))


def quantized(weights: Floats, type: str) -> Floats:
    """The weights as that type has them."""
    with ThreadPoolExecutor() as pool:
        raw = quantize_rows(weights.astype(np.float32), TYPES[type], None, pool)
    return to_float(raw, TYPES[type]).astype(np.float64)


def errors(x: Floats, weights: Floats) -> list[float]:
    """Of products with x rounded in blocks of 32, and of 256."""
    want = x @ weights.T
    return [relative_error(rounded(x, n) @ weights.T, want) for n in BLOCKS]


def types(text: str) -> list[str]:
    found = report.words(text)
    for name in found:
        if name not in TYPES or not (TYPES[name].is_quantized and can_quantize(TYPES[name])):
            raise argparse.ArgumentTypeError(f"{name} is no type that can be quantised to")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", type=types, default=["q4_K", "q6_K"], metavar="T,T…")
    parser.add_argument("--rows", type=report.count, default=256, help="of x, and of weights (256)")
    options = parser.parse_args(arguments)
    shape = options.rows, K
    original = gaussian(np.random.default_rng(0), shape)
    weights = {name: quantized(original, name) for name in options.types}
    columns = [f"{name}, per {n}" for name in weights for n in BLOCKS]
    table = Table("x", *columns)
    for seed, (name, draw) in enumerate(X.items(), 1):
        x = draw(np.random.default_rng(seed), shape)
        found = [error for each in weights.values() for error in errors(x, each)]
        table.add_row(name, *(f"{error:.2%}" for error in found))
    report.show(table)
    print(f"weights of q8_0: {relative_error(quantized(original, 'q8_0'), original):.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
