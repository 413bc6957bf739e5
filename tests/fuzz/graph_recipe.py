"""Random graphs as recipes: leaves with how they are filled, nodes by the names of their sources.

    [name, "leaf", [], {"type": "q8_0", "ne": [64, 5], "fill": "uniform", "seed": 7}]
    [name, "mul_mat", [source, source], {}]

Shapes come from building each node as it is drawn; what is refused is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

from ggmlpy import ops
from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, type_of

Node = list[Any]

ROWS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 128, 256, 512)
FEW = (1, 1, 1, 2, 3, 4, 5, 7)
# Ops of which some sources are keywords: how many are not, and the names of those.
_KEYWORDS = {"flash_attn_ext": (4, ("cells", "seen")), "ssm_conv": (2, ("taps",))}
_MOST = 20_000  # elements of a tensor
_LARGE = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "tq1_0", "tq2_0", "iq1_s", "iq1_m",
          "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")  # fmt: skip
_SMALL = tuple(t for t in QUANTIZED if t not in _LARGE and t != "nvfp4")


class Drawing:
    """A graph under way: its nodes, and its tensors by name."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.written: set[str] = set()  # leaves that a node writes to: nothing else may read them

    def leaf(self, type: str, ne: tuple[int, ...], fill: str = "", **more: Any) -> str:
        """A new leaf; most are uniform in -1 … 1."""
        rng = self.rng
        fill = fill or rng.choice(
            ("uniform",) * 6 + ("normal", "normal", "sparse", "ties", "special")
        )
        params = {"type": type, "ne": list(ne), "fill": fill, "seed": rng.randrange(10**6), **more}
        name = f"n{len(self.nodes)}"
        self.nodes.append([name, "leaf", [], params])
        self.tensors[name] = Tensor(Spec(ne, type_of(type)), name=name)
        return name

    def add(self, op: str, sources: list[str | None], /, **params: Any) -> str:
        """A new node. Raises GgmlpyError where it cannot be."""
        name = f"n{len(self.nodes)}"
        given = [None if source is None else self.tensors[source] for source in sources]
        try:
            made = apply(op, given, params)
            if prod(made.ne) > _MOST:
                raise _Refused
            self.tensors[name] = made
        except GgmlpyError:
            raise
        except Exception:  # a finding, if it comes again where it is run
            self.nodes.append([name, op, sources, params])
            raise _Refused from None
        self.nodes.append([name, op, sources, params])
        return name

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: t.type is F32) -> str:
        """A tensor that fits, the latest ones rather; a new f32 leaf if none does."""
        known = [n for n, t in self.tensors.items() if n not in self.written and fits(t)]
        if known and self.rng.random() < 0.85:
            return self.rng.choice(known[-4:])
        name = self.leaf("f32", self.ne())
        if not fits(self.tensors[name]):
            raise _Refused
        return name

    def ne(self) -> tuple[int, ...]:
        """A shape of one to four dimensions."""
        rng = self.rng
        ne = [rng.choice(ROWS), *(rng.choice(FEW) for _ in range(rng.randint(0, 3)))]
        return tuple(ne)

    def type_for(self, n: int) -> str:
        """A type whose rows may have n elements."""
        kinds: list[tuple[str, ...]] = [FLOATS]
        kinds += [_SMALL, _SMALL] if n % 32 == 0 else []
        kinds += [(*_LARGE, "nvfp4"), _LARGE] if n % 256 == 0 else []
        return self.rng.choice(self.rng.choice(kinds))


class _Refused(GgmlpyError):
    """Too large, or nothing fits: draw something else."""


def apply(op: str, sources: list[Tensor | None], params: dict[str, Any]) -> Tensor:
    """The node of a recipe."""
    function: Callable[..., Tensor] = getattr(ops, op)
    n, names = _KEYWORDS.get(op, (len(sources), ()))
    return function(*sources[:n], **dict(zip(names, sources[n:], strict=False)), **params)
