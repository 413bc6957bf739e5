"""Calls of ops of training, and of custom ops, that break a rule each; see broken_rules.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from tests.ops.values import blank, f32, i32


def nothing(dst: Any, *rest: Any) -> None:
    """A function for custom ops."""


def turned(offset: int, mode: int = 0) -> Tensor:
    n_dims = 16 if mode == 24 else 8
    sections = (8, 8, 0, 0) if mode else (0, 0, 0, 0)
    pos = i32(12 if mode else 3)
    y = ops.rope_multi(f32(32 if mode == 24 else 16, 2, 3), pos, None, n_dims, sections, mode,
                       0, 1e4, 1.0, 0.0, 1.0, 0.0, 0.0)  # fmt: skip
    return ops.rope_set_offset(y, offset)


BROKEN_TRAINING: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: turned(10), "n_offs is 10: it must be even, 0 to 8"),
    (lambda: turned(3), "n_offs is 3: it must be even, 0 to 8"),
    (lambda: turned(2, 24), "n_offs is 2: it must be 0 in mode VISION"),
    (lambda: ops.rope_set_offset(f32(4), 0), "a must be a result of rope"),
    (
        lambda: ops.rope_multi_back(
            f32(8, 1, 1), i32(4), None, 8, (1, 1), 8, 0, 1e4, 1.0, 0.0, 1.0, 0.0, 0.0
        ),
        "there are 2 sections: there must be 4",
    ),
    (lambda: ops.silu_back(i32(4), f32(4)), "grad must be f32 with contiguous rows"),
    (lambda: ops.silu_back(f32(4), f32(5)), "grad and x must have the same shape"),
    (lambda: ops.get_rows_back(i32(4, 2), i32(2), f32(4, 3)), "grad must be f32 or f16"),
    (
        lambda: ops.get_rows_back(ops.transpose(f32(2, 4)), i32(2), f32(4, 3)),
        "grad must have contiguous rows",
    ),
    (
        lambda: ops.get_rows_back(f32(4, 2, 2), i32(2), f32(4, 3)),
        "grad must have at most 2 dimensions",
    ),
    (lambda: ops.get_rows_back(f32(4, 2), i32(3), f32(4, 3)), "ids must be i32 [2]: one for each"),
    (lambda: ops.get_rows_back(f32(4, 2), i32(2), f32(5, 3)), "c must be [4, n], it is [5, 3]"),
    (lambda: ops.soft_max_ext_back(f32(4), f32(4), 1.0, 2.0), "max_bias is 2: it must be 0"),
    (
        lambda: ops.cross_entropy_loss_back(f32(2), f32(4), f32(4)),
        "grad must be f32 with one element",
    ),
    (
        lambda: ops.opt_step_adamw(f32(4), i32(4), f32(4), f32(4), f32(7)),
        "tensors must be f32 and contiguous",
    ),
    (
        lambda: ops.opt_step_adamw(f32(4), f32(5), f32(4), f32(4), f32(7)),
        "tensors must have the same shape",
    ),
    (
        lambda: ops.opt_step_adamw(f32(4), f32(4), f32(4), f32(4), f32(6)),
        "params must be f32 [7]: alpha, beta1",
    ),
    (lambda: ops.opt_step_sgd(f32(4), i32(4), f32(2)), "grad must be f32 and contiguous"),
    (lambda: ops.opt_step_sgd(f32(4), f32(5), f32(2)), "w and grad must have the same shape"),
    (lambda: ops.opt_step_sgd(f32(4), f32(4), f32(3)), "params must be f32 [2]: alpha, wd"),
    (
        lambda: ops.flash_attn_back(i32(8, 2), f32(8, 3), f32(3, 8), f32(8, 2), False),
        "q must be f32",
    ),
    (
        lambda: ops.flash_attn_back(f32(8, 2), f32(8, 3), f32(3, 8), f32(8, 3), False),
        "grad must have the shape of q",
    ),
    (
        lambda: ops.flash_attn_back(f32(8, 2), f32(7, 3), f32(3, 7), f32(8, 2), False),
        "k must be [8, any, any, 1], as q is",
    ),
    (
        lambda: ops.flash_attn_back(f32(8, 2), f32(8, 3), f32(8, 3), f32(8, 2), False),
        "v must be [3, 8, 1, 1]: k's rows as columns",
    ),
    (
        lambda: ops.flash_attn_back(f32(8, 2, 3), f32(8, 3, 2), f32(3, 8, 2), f32(8, 2, 3), False),
        "the 3 heads of q must be a multiple of k's",
    ),
    (
        lambda: ops.flash_attn_back(f32(8, 4), f32(8, 3), f32(3, 8), f32(8, 4), True),
        "masked: k must have a row for each query",
    ),
    (
        lambda: ops.map_custom1(f32(4), nothing, 0, None),
        "n_tasks is 0: it must be 1 to 512, or -1",
    ),
    (
        lambda: ops.map_custom1(blank("q8_0", 32), nothing, 1, None),
        "the result is q8_0: it must not be quantised",
    ),
]
