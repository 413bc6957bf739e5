"""Every rule of every op has a call that breaks it, and a message that says so.

The calls are in `broken_*.py`. The last test reads the source of the ops and fails for a
`require` that no call breaks.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest

import ggmlpy.ops
from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.errors import ShapeError
from tests.ops.broken_attention import BROKEN_ATTENTION
from tests.ops.broken_convolutions import BROKEN_CONVOLUTIONS
from tests.ops.broken_images import BROKEN_IMAGES
from tests.ops.broken_recurrent import BROKEN_RECURRENT
from tests.ops.broken_rules import BROKEN
from tests.ops.broken_training import BROKEN_TRAINING
from tests.ops.values import f16, f32

CALLS = [
    *BROKEN,
    *BROKEN_ATTENTION,
    *BROKEN_RECURRENT,
    *BROKEN_IMAGES,
    *BROKEN_CONVOLUTIONS,
    *BROKEN_TRAINING,
]


@pytest.mark.parametrize("i", range(len(CALLS)))
def test_a_broken_rule_says_what_is_and_what_must_be(i: int) -> None:
    build, expected = CALLS[i]
    with pytest.raises(ShapeError) as caught:
        build()
    assert expected in str(caught.value)


def test_messages_say_where() -> None:
    weight, x = f16(14, 4).named("ffn_down.weight"), f32(4, 7)
    with scope("blk.3"), pytest.raises(ShapeError) as caught:
        ops.mul_mat(weight, x)
    assert str(caught.value) == (
        "blk.3.mul_mat: weight ffn_down.weight is f16 [14, 4], x is f32 [4, 7]: "
        "first dimensions 14 and 4 differ"
    )


def _modules() -> list[Any]:
    names = [m.name for m in pkgutil.iter_modules(ggmlpy.ops.__path__, "ggmlpy.ops.")]
    return [importlib.import_module(name) for name in names]


def _written() -> set[tuple[str, int]]:
    """File and line of every call of `require` in the ops."""
    found = set()
    for module in _modules():
        path = Path(module.__file__)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
                found.add((path.name, node.lineno))
    return found


def test_every_rule_is_broken_by_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: set[tuple[str, int]] = set()

    def require(condition: bool, message: str) -> None:
        if not condition:
            caller = sys._getframe(1)
            broken.add((Path(caller.f_code.co_filename).name, caller.f_lineno))
            raise ShapeError(message)

    for module in _modules():
        if hasattr(module, "require"):
            monkeypatch.setattr(module, "require", require)
    for build, _ in CALLS:
        with pytest.raises(ShapeError):
            build()
    written = _written()
    assert len(written) > 100
    assert written - broken == set(), "rules that no case breaks"
