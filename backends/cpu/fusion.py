"""Neighbouring nodes made one record: passes over the steps of a plan, each with a name.

    name          what becomes one                                  and is not written any more
    norm          rms_norm or norm, mul, and an add if one follows  the norm, the product
    residual      add (or norm * w + b), rms_norm, mul              the norm; the sum still is
    glu           two products of one x, and their gated unit       both products
    rope          rope, set_rows into a cache                       the turned rows
    bias          mul_mat, add of a vector                          the product
    activations   (in builder.py) x quantised once for all products in a row that read it

A pass is a function steps -> steps, and goes over what those before it have left. It changes no bit
of any result, and is careful in the same way for all patterns:

    The nodes follow each other in the plan, so nothing else happens between them.
    A value is left out only if the node that takes it in is the only one to read it, in this plan
    and outside: `Backend.plan` is told which values are wanted. Without being told, nothing is.
    What the record reads stays apart from what it writes, or is the same rows: memory was handed
    out for one node after another, so a result may lie on a source that an earlier node was the
    last to read.

`CpuBackend(fusion=...)` says which passes run, and so does GGMLPY_CPU_FUSION: `all`, `none`, or
names with commas between them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set

from ggmlpy.backends.base import Places
from ggmlpy.backends.cpu.kernels.fused_glu import MATMUL_GLU
from ggmlpy.backends.cpu.kernels.fused_norm import ADD_NORM, NORM_MUL
from ggmlpy.backends.cpu.kernels.fused_rope import SET_TURNED
from ggmlpy.backends.cpu.kernels.matmul import KERNELS as MATMULS
from ggmlpy.backends.cpu.step import Step
from ggmlpy.errors import BackendError
from ggmlpy.graph.tensor import Tensor

_WISHED = os.environ.get("GGMLPY_CPU_FUSION") or "all"


class Values:
    """Who reads the values of a plan's nodes, and where they lie."""

    def __init__(self, nodes: Sequence[Tensor], places: Places, wanted: Set[Tensor]) -> None:
        self._n_reads = Counter(source.root for node in nodes for source in node.src)
        self._places = places
        self._wanted = wanted

    def only_for_next(self, value: Tensor) -> bool:
        """Whether one node of the plan reads the value, once, and nothing outside does."""
        own = value.root is value and value not in self._wanted
        return own and self._n_reads[value] == 1

    def apart(self, results: Iterable[Tensor], sources: Iterable[Tensor]) -> bool:
        """Whether no byte of a result is one of a source."""
        return not any(self._overlap(y, x) for y in results for x in sources)

    def by_rows(self, results: Iterable[Tensor], sources: Iterable[Tensor]) -> bool:
        """The same, but a source may be the very rows of a result."""
        return not any(
            self._overlap(y, x) and not self._same_rows(y, x) for y in results for x in sources
        )

    def _overlap(self, a: Tensor, b: Tensor) -> bool:
        p, q = self._places[a], self._places[b]
        ends = p.address + a.spec.n_bytes, q.address + b.spec.n_bytes
        return p.address < ends[1] and q.address < ends[0]

    def _same_rows(self, a: Tensor, b: Tensor) -> bool:
        return self._places[a].address == self._places[b].address and a.spec.same_layout(b.spec)


Pass = Callable[[list[Step], Values], list[Step]]


def fuse(
    steps: list[Step],
    passes: Set[str],
    places: Places,
    wanted: Set[Tensor] | None,
) -> list[Step]:
    """The steps after the passes of these names. `wanted` as in Backend.plan."""
    if wanted is None:
        return steps
    values = Values([step.node for step in steps], places, wanted)
    for name, run in PASSES.items():
        if name in passes:
            steps = run(steps, values)
    return steps


def chosen(fusion: str | Iterable[str] | None = None) -> frozenset[str]:
    """The names of passes that `fusion` stands for, by default GGMLPY_CPU_FUSION, else all.

    Raises BackendError for a name that there is not.
    """
    given = _WISHED if fusion is None else fusion
    if given == "all":
        return frozenset(NAMES)
    if given == "none":
        return frozenset()
    names = frozenset(given.split(",") if isinstance(given, str) else given)
    unknown = sorted(names - set(NAMES))
    if unknown:
        whose = "GGMLPY_CPU_FUSION" if fusion is None else "fusion"
        raise BackendError(
            f"{whose}: there is no {', '.join(map(repr, unknown))}; there are {', '.join(NAMES)},"
            " all and none"
        )
    return names


def _merged(
    steps: list[Step], n: int, merge: Callable[[Sequence[Step]], Step | None]
) -> list[Step]:
    """The steps with every `n` in a row that `merge` makes one of replaced by it."""
    result, i = [], 0
    while i < len(steps):
        window = steps[i : i + n]
        made = merge(window) if len(window) == n else None
        result.append(steps[i] if made is None else made)
        i += 1 if made is None else n
    return result


def _is(step: Step, kernel: str) -> bool:
    """Whether the step is one node, run by this kernel."""
    return not step.is_fused and step.kernel.name == kernel


# --- norm ---------------------------------------------------------------------------------------


def norm(steps: list[Step], values: Values) -> list[Step]:
    """rms_norm and norm with the mul that follows; then these with the add that follows."""

    def weigh(window: Sequence[Step]) -> Step | None:
        first, second = window
        x, y = first.node, second.node
        fits = first.kernel.name in ("rms_norm_f32", "norm_f32") and _is(second, "mul_f32")
        if not fits or not _row_by_row(x, y) or not values.only_for_next(x):
            return None
        source, weight = x.src[0], y.src[1]
        if not values.by_rows([y], [source]) or not values.apart([y], [weight]):
            return None
        operands = {"y": y, "x": source, "weight": weight}
        return Step(NORM_MUL[first.kernel.op], x, (x, y), (y,), operands)

    def add(window: Sequence[Step]) -> Step | None:
        first, second = window
        x, y = first.nodes[-1], second.node
        fits = first.kernel in NORM_MUL.values() and _is(second, "add_f32")
        if not fits or not _row_by_row(x, y) or not values.only_for_next(x):
            return None
        operands = {**(first.operands or {}), "y": y, "b": y.src[1]}
        by_rows = values.by_rows([y], [operands["x"], operands["b"]])
        if not by_rows or not values.apart([y], [operands["weight"]]):
            return None
        return Step(first.kernel, first.node, (*first.nodes, y), (y,), operands)

    return _merged(_merged(steps, 2, weigh), 2, add)


def _row_by_row(x: Tensor, y: Tensor) -> bool:
    """Whether y = x (op) b, with b's rows as long as those of x, and x not read twice."""
    return y.src[0] is x and y.src[1].ne[0] == x.ne[0] and y.src[1].root is not x


# --- residual -----------------------------------------------------------------------------------


def residual(steps: list[Step], values: Values) -> list[Step]:
    """A sum of two tensors of one shape, and rms_norm * weight of it.

    The sum is an add, or what `norm` has made of rms_norm, mul and add.
    """

    def merge(window: Sequence[Step]) -> Step | None:
        first, second = window
        after = second.kernel is NORM_MUL["rms_norm"] and len(second.nodes) == 2
        if not after or second.operand("x") is not first.nodes[-1]:
            return None
        total, y = first.nodes[-1], second.nodes[-1]
        if _is(first, "add_f32"):
            operands, values_of = {"a": total.src[0], "b": total.src[1]}, {"inner_eps": 0.0}
        elif first.kernel is NORM_MUL["rms_norm"] and len(first.nodes) == 3:
            a, inner = first.operand("x"), first.operand("weight")
            operands = {"a": a, "b": first.operand("b"), "inner": inner}
            assert first.node.op is not None
            values_of = {"inner_eps": first.node.op.params()["eps"]}
        else:
            return None
        weights = [second.operand("weight"), *(operands[k] for k in ("inner",) if k in operands)]
        rows = [operands["a"], operands["b"]]
        fits = all(x.ne == total.ne for x in rows) and values.by_rows([total, y], rows)
        if not fits or not values.apart([total, y], weights):
            return None
        # y may lie on the sum only where no one reads the sum but the norm.
        lost = values.only_for_next(total) and values.by_rows([y], [total])
        if not lost and not values.apart([y], [total]):
            return None
        operands |= {"y": y, "sum": total, "weight": second.operand("weight")}
        nodes = (*first.nodes, *second.nodes)
        return Step(ADD_NORM, second.node, nodes, (total, y), operands, values_of)

    return _merged(steps, 2, merge)


# --- glu ----------------------------------------------------------------------------------------


def glu(steps: list[Step], values: Values) -> list[Step]:
    """act(gate x) * (up x): products of one x by weights of one type and shape."""

    def merge(window: Sequence[Step]) -> Step | None:
        first, second, third = window
        y = third.node
        assert y.op is not None
        if third.is_fused or len(y.src) != 2 or {first.node, second.node} != set(y.src):
            return None
        matmul = first.kernel
        if matmul not in MATMULS.values() or second.kernel is not matmul:
            return None
        gate, up = y.src
        kernel = MATMUL_GLU.get((gate.src[0].type.name, y.op.name))
        if kernel is None:
            return None
        same = gate.src[0].ne == up.src[0].ne and gate.op == up.op and gate.src[1:] == up.src[1:]
        if not same or not values.only_for_next(gate) or not values.only_for_next(up):
            return None
        if not values.apart([y], [*gate.src, up.src[0]]):
            return None
        operands = {"y": y, "x": gate.src[1]}
        if len(gate.src) == 3:
            operands["ids"] = gate.src[2]
        return Step(kernel, y, (first.node, second.node, y), (y,), operands)

    return _merged(steps, 3, merge)


# --- rope ---------------------------------------------------------------------------------------


def rope(steps: list[Step], values: Values) -> list[Step]:
    """Rows [D, Hk, T] turned, and written by set_rows as T rows of D * Hk."""

    def merge(window: Sequence[Step]) -> Step | None:
        first, second = window
        turned, y = first.node, second.node
        if not _is(first, "rope_f32") or not _is(second, f"set_rows_{y.type.name}"):
            return None
        stored, ids, _ = y.src
        whole = stored.root is turned and stored.view_offs == 0 and stored.contiguous
        D, Hk, T, rest = turned.ne
        shaped = stored.ne == (D * Hk, T, 1, 1) and rest == 1 and ids.ne == (T, 1, 1, 1)
        if not whole or not shaped or not turned.contiguous or not values.only_for_next(turned):
            return None
        if not values.apart([y], [*turned.src, ids]):
            return None
        x, pos, *factors = turned.src
        operands = {"y": y, "x": x, "pos": pos, "ids": ids}
        if factors:
            operands["freq_factors"] = factors[0]
        return Step(SET_TURNED[y.type.name], y, (turned, y), (y,), operands)

    return _merged(steps, 2, merge)


# --- bias ---------------------------------------------------------------------------------------


def bias(steps: list[Step], values: Values) -> list[Step]:
    """A product by a weight, and a vector added to each of its rows."""

    def merge(window: Sequence[Step]) -> Step | None:
        first, second = window
        product, y = first.node, second.node
        is_product = first.kernel in MATMULS.values() and not first.is_fused
        if not is_product or not _is(second, "add_f32") or not _row_by_row(product, y):
            return None
        vector = y.src[1]
        if not vector.is_leaf or vector.spec.n_rows != 1 or not values.only_for_next(product):
            return None
        if not values.apart([y], [*product.src, vector]):
            return None
        operands = {"y": y, "x": product.src[1], "bias": vector}
        if len(product.src) == 3:
            operands["ids"] = product.src[2]
        return Step(first.kernel, product, (product, y), (y,), operands)

    return _merged(steps, 2, merge)


PASSES: dict[str, Pass] = {
    "norm": norm,
    "residual": residual,
    "glu": glu,
    "rope": rope,
    "bias": bias,
}
NAMES = (*PASSES, "activations")
