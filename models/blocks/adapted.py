"""Products and lookups of weights that LoRA adapters change, for some tokens of a ubatch.

What an adapter adds is computed for the tokens that have it, and written over their columns:

    y[:, ids] += B ((A x[:, ids]) * scales * factor)

so that the columns of the others are the bits that they would be without any adapter, and those of
a token the same in any batch. Several adapters of a token are added one after the other, in the
order of their digests. Where all tokens have an adapter nothing is gathered. While a graph
is built, `applying` says which adapters there are; without it these are the plain ops.

Letters in shapes: T tokens, O outputs, M tokens of an adapter, r its rank, U experts used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ggmlpy import ops
from ggmlpy.common.quoting import quoted
from ggmlpy.common.scopes import scope
from ggmlpy.errors import Unsupported
from ggmlpy.graph.count import same_counts
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.lora import LoraAdapter, LoraInputs, LoraRows, LoraWeight


class Applied:
    """The adapters of the graph that is being built."""

    def __init__(self, inputs: GraphInputs) -> None:
        self._inputs = inputs
        self.used: set[tuple[LoraAdapter, str]] = set()  # and the weights that they have changed
        self._gathered: dict[tuple[Tensor, Tensor], Tensor] = {}
        self._scaled: dict[tuple[Tensor, float], Tensor] = {}

    def changes_of(self, weight: Tensor) -> list[tuple[int, LoraInputs, LoraWeight]]:
        """What adapters add to a weight, or to a view of all of it: the number of each."""
        leaf = weight.root
        if leaf.spec.n_elements != weight.spec.n_elements:
            return []
        found = []
        for i, part in enumerate(self._inputs.lora):
            change = part.adapter.weights.get(leaf)
            if change is not None:
                self.used.add((part.adapter, change.name))
                found.append((i, part, change))
        return found

    def rows_of(self, part: LoraInputs, n: int, name: str) -> LoraRows | None:
        """An adapter's inputs for the n tokens of some columns: all, or those that are output."""
        if same_counts((n,), (self._inputs.tokens.ne[0],)) and n == self._inputs.tokens.ne[0]:
            return part.tokens
        if same_counts((n,), (self._inputs.out_ids.ne[0],)) and n == self._inputs.out_ids.ne[0]:
            return part.outputs
        raise Unsupported(
            f"{part.adapter.name}: the adapter changes {quoted(name)}, whose product is not one of"
            " tokens in this architecture: that is not supported"
        )

    def gathered(self, x: Tensor, rows: LoraRows) -> Tensor:
        """The columns of x [n, T] of an adapter's tokens: [n, M]"""
        if rows.ids is None:
            return x
        key = x, rows.ids
        if key not in self._gathered:
            self._gathered[key] = ops.get_rows(x, rows.ids).named("x")
        return self._gathered[key]

    def scales(self, rows: LoraRows, factor: float) -> Tensor:
        """[1, M]"""
        if factor == 1.0:
            return rows.scales
        key = rows.scales, factor
        if key not in self._scaled:
            self._scaled[key] = ops.scale(rows.scales, factor).named("scales")
        return self._scaled[key]


_applied: ContextVar[Applied | None] = ContextVar("ggmlpy_lora", default=None)


@contextmanager
def applying(inputs: GraphInputs) -> Iterator[Applied]:
    """Let the products that are built inside have the adapters of the inputs."""
    applied = Applied(inputs)
    token = _applied.set(applied if inputs.lora else None)
    try:
        yield applied
    finally:
        _applied.reset(token)


def add_lora(y: Tensor, weight: Tensor, x: Tensor, name: str) -> Tensor:
    """The product y [n_out, T] of a weight [n_in, n_out] and x [n_in, T], scaled if it is, and what
    adapters add. Names of nodes begin with `name`."""
    applied = _applied.get()
    if applied is None:
        return y
    for i, part, change in applied.changes_of(weight):
        if x.ne[2] != 1 or x.ne[3] != 1 or weight.ne[2] != 1:
            raise Unsupported(
                f"{part.adapter.name}: the adapter changes {quoted(change.name)}, whose product is"
                " one of parts of tokens in this architecture: that is not supported"
            )
        rows = applied.rows_of(part, x.ne[1], change.name)
        if rows is None:
            continue
        with scope(f"{name}.lora_{i}"):
            low = ops.mul_mat(change.a, applied.gathered(x, rows)).named("a")  # [r, M]
            low = ops.mul(low, applied.scales(rows, change.factor)).named("a_scaled")
            y = _add(y, ops.mul_mat(change.b, low).named("b"), rows)
    return y


def add_lora_id(y: Tensor, weight: Tensor, x: Tensor, selected: Tensor, name: str) -> Tensor:
    """The products y [n_out, U, T] of selected experts, scaled if they are, and what adapters add.

    weight [n_in, n_out, X], x [n_in, 1 or U, T], selected [U, T] i32
    """
    applied = _applied.get()
    if applied is None:
        return y
    U, T = selected.ne[:2]
    for i, part, change in applied.changes_of(weight):
        rows = applied.rows_of(part, T, change.name)
        if rows is None:
            continue
        with scope(f"{name}.lora_{i}"):
            ids, of_tokens = selected, x
            if rows.ids is not None:
                ids = ops.get_rows(_flat(selected, U, T, "topk"), rows.ids).named("topk_rows")
                n_in, k = x.ne[:2]
                gathered = applied.gathered(_flat(x, n_in * k, T, "x_flat"), rows)  # [n_in*k, M]
                of_tokens = ops.reshape_3d(gathered, n_in, k, rows.ids.ne[0]).named("x_rows")
            M = of_tokens.ne[2]
            low = ops.mul_mat_id(change.a, of_tokens, ids).named("a")  # [r, U, M]
            scales = ops.reshape_3d(applied.scales(rows, change.factor), 1, 1, M)
            low = ops.mul(low, scales.named("scales_3d")).named("a_scaled")
            delta = ops.mul_mat_id(change.b, low, ids).named("b")  # [n_out, U, M]
            if rows.ids is None:
                y = _add(y, delta, rows)
                continue
            n_out = y.ne[0]
            flat = _flat(y, n_out * U, T, "y_flat")
            added = _add(flat, _flat(delta, n_out * U, M, "b_flat"), rows)
            y = ops.reshape_3d(added, n_out, U, T).named("y")
    return y


def lookup(weight: Tensor, tokens: Tensor, name: str) -> Tensor:
    """The rows of tokens [T] i32, called `name`, and what adapters add: weight [E, V] -> [E, T]"""
    y = ops.get_rows(weight, tokens).named(name)
    applied = _applied.get()
    if applied is None:
        return y
    for i, part, change in applied.changes_of(weight):
        rows = part.tokens
        with scope(f"{name}.lora_{i}"):
            ids = tokens
            if rows.ids is not None:
                column = ops.reshape_2d(tokens, 1, tokens.ne[0]).named("tokens")  # [1, T]
                ids = ops.get_rows(column, rows.ids).named("tokens_rows")  # [1, M] i32
                ids = ops.reshape_1d(ids, ids.ne[1]).named("tokens_flat")
            low = ops.get_rows(change.a, ids).named("a")  # [r, M]
            low = ops.mul(low, applied.scales(rows, change.factor)).named("a_scaled")
            y = _add(y, ops.mul_mat(change.b, low).named("b"), rows)
    return y


def _flat(x: Tensor, n: int, T: int, name: str) -> Tensor:
    """x [.., .., T] as [n, T]"""
    contiguous = x if x.contiguous else ops.cont(x).named(f"{name}_cont")
    return ops.reshape_2d(contiguous, n, T).named(name)


def _add(y: Tensor, delta: Tensor, rows: LoraRows) -> Tensor:
    """delta [n, M] added to the columns of y [n, T] that have the adapter: [n, T]"""
    if rows.ids is None:
        return ops.add(y, delta).named("sum")
    changed = ops.add(ops.get_rows(y, rows.ids).named("rows"), delta).named("sum")
    return ops.set_rows(y, changed, rows.ids).named("set")
