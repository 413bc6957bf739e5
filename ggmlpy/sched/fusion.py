"""Fusion passes: consecutive nodes become one step, so values between them need no memory.

    pass       fused steps                      operands                      results
    residual   add+rms_norm+mul                 a, b, weight                  y [, sum]
               rms_norm+mul+add+rms_norm+mul    a, inner, b, weight           y [, sum]
    norm       rms_norm+mul, norm+mul           x, weight                     y
               rms_norm+mul+add, norm+mul+add   x, weight, b                  y
    glu        mul_mat+mul_mat+swiglu, ...      gate, up, x                   y
               mul_mat_id+mul_mat_id+...        gate, up, x, ids              y
    rope       rope+set_rows                    x, pos [, freq_factors], ids, dst    y
    bias       mul_mat+add, mul_mat_id+add      weight, x [, ids], bias       y
    scan       ssm_scan+set_rows                those of the scan, to, dst    y, stored
               get_rows+...+set_rows            those of the scan with the    y, stored
                                                table as state, ids,
                                                spans, to, dst

The step of two norms has the parameter `inner_eps` beside `eps`. The sum of a residual step is a
result where something else reads it. Rows of norms' operands are contiguous. `...` stands for the
other gated linear units, or a scan with spans; the rows that it reads and writes are of one table.

A pass is a function steps -> steps of one split, and gets what the passes before it return. It asks
`accept` for each step that it could fuse: passes.py accepts a step if nothing else reads the values
inside and the backend supports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from ggmlpy.backends.step import Step
from ggmlpy.graph.tensor import Tensor

Accept = Callable[[Step], bool]
Pass = Callable[[list[Step], Accept], list[Step]]
Propose = Callable[..., Iterable[Step]]  # consecutive nodes -> possible fused steps, best first

RMS_NORM, NORMS, MUL, ADD = {"rms_norm"}, {"rms_norm", "norm"}, {"mul"}, {"add"}
PRODUCTS = {"mul_mat", "mul_mat_id"}
SCANS = {"gated_delta_net", "gated_linear_attn", "rwkv_wkv6", "rwkv_wkv7"}
GATED = {"reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick", "swiglu_oai"}


def _fused(
    steps: list[Step], accept: Accept, ops: Sequence[Set[str]], propose: Propose
) -> list[Step]:
    """Replace consecutive nodes of these ops by the first step of `propose` that is accepted."""
    names = [step.op for step in steps]  # a fused step's name is that of no single op
    first, n = ops[0], len(ops)
    result: list[Step] = []
    n_done = 0
    for i, name in enumerate(names):
        if name not in first or i < n_done or i + n > len(names):
            continue
        if all(name in of for name, of in zip(names[i : i + n], ops, strict=True)):
            nodes = [step.node for step in steps[i : i + n]]
            fused = next(filter(accept, propose(*nodes)), None)
            if fused is not None:
                result += [*steps[n_done:i], fused]
                n_done = i + n
    return result + steps[n_done:]


def _row_by_row(x: Tensor, y: Tensor) -> bool:
    """Whether y = x (op) b, with b's rows as long as those of x."""
    b = y.src[1]
    return y.src[0] is x and b.ne[0] == x.ne[0] and _rows_ok(b)


def _rows_ok(x: Tensor) -> bool:
    return x.rows_contiguous or x.ne[0] == 1


# --- residual -----------------------------------------------------------------------------------


def residual(steps: list[Step], accept: Accept) -> list[Step]:
    """rms_norm * weight of a sum of two tensors of one shape, of which the first may be a norm."""
    steps = _fused(steps, accept, (RMS_NORM, MUL, ADD, RMS_NORM, MUL), _norm_add_norm)
    return _fused(steps, accept, (ADD, RMS_NORM, MUL), _add_norm)


def _norm_add_norm(
    inner: Tensor, weighted: Tensor, total: Tensor, norm: Tensor, y: Tensor
) -> Iterable[Step]:
    if not _row_by_row(inner, weighted) or total.src[0] is not weighted:
        return []
    assert inner.op is not None
    operands = {"a": inner.src[0], "inner": weighted.src[1], "b": total.src[1]}
    eps = {"inner_eps": inner.op.params()["eps"]}
    return _sum_and_norm((inner, weighted, total, norm, y), operands, eps)


def _add_norm(total: Tensor, norm: Tensor, y: Tensor) -> Iterable[Step]:
    a, b = total.src
    return _sum_and_norm((total, norm, y), {"a": a, "b": b}, {})


def _sum_and_norm(
    nodes: tuple[Tensor, ...], operands: dict[str, Tensor], params: dict[str, float]
) -> Iterable[Step]:
    total, norm, y = nodes[-3:]
    if norm.src[0] is not total or not _row_by_row(norm, y):
        return
    rows = operands["a"], operands["b"]
    weights = [y.src[1], *(operands[name] for name in operands.keys() & {"inner"})]
    if not all(x.ne == total.ne and _rows_ok(x) for x in rows):
        return
    if {x.root for x in rows} & {w.root for w in weights}:  # which the sum may overwrite too early
        return
    operands["weight"] = y.src[1]
    in_place = {"y": ("b", "a"), "sum": ("a", "b")}
    for results in ({"y": y}, {"y": y, "sum": total}):
        yield Step(norm, nodes, operands, results, params, in_place)


# --- norm ---------------------------------------------------------------------------------------


def norm(steps: list[Step], accept: Accept) -> list[Step]:
    """rms_norm or norm, the mul that follows, and the add that follows that."""
    steps = _fused(steps, accept, (NORMS, MUL, ADD), _norm_mul_add)
    return _fused(steps, accept, (NORMS, MUL), _norm_mul)


def _norm_mul_add(norm: Tensor, weighted: Tensor, y: Tensor) -> Iterable[Step]:
    if _row_by_row(norm, weighted) and _row_by_row(weighted, y):
        operands = {"x": norm.src[0], "weight": weighted.src[1], "b": y.src[1]}
        in_place = {"y": ("x", "b")}
        yield Step(norm, (norm, weighted, y), operands, {"y": y}, in_place=in_place)


def _norm_mul(norm: Tensor, y: Tensor) -> Iterable[Step]:
    if _row_by_row(norm, y):
        operands = {"x": norm.src[0], "weight": y.src[1]}
        yield Step(norm, (norm, y), operands, {"y": y}, in_place={"y": ("x",)})


# --- glu ----------------------------------------------------------------------------------------


def glu(steps: list[Step], accept: Accept) -> list[Step]:
    """act(gate x) * (up x): products of one x by weights of one type and shape."""
    return _fused(steps, accept, (PRODUCTS, PRODUCTS, GATED), _gated)


def _gated(first: Tensor, second: Tensor, y: Tensor) -> Iterable[Step]:
    if len(y.src) != 2 or {first, second} != set(y.src):
        return
    (gate, *x), (up, *x_of_up) = y.src[0].src, y.src[1].src
    alike = gate.type is up.type and gate.ne == up.ne and x == x_of_up
    if alike and first.op == second.op:
        operands = {"gate": gate, "up": up, **dict(zip(("x", "ids"), x, strict=False))}
        yield Step(y, (first, second, y), operands, {"y": y})


# --- rope ---------------------------------------------------------------------------------------


def rope(steps: list[Step], accept: Accept) -> list[Step]:
    """Rows [D, Hk, T] rotated, and written by set_rows as T rows of D * Hk."""
    return _fused(steps, accept, ({"rope"}, {"set_rows"}), _rope_set_rows)


def _rope_set_rows(rotated: Tensor, y: Tensor) -> Iterable[Step]:
    rows, ids, dst = y.src
    D, Hk, T, rest = rotated.ne
    whole = rows.root is rotated and rows.contiguous and rest == 1
    if whole and rows.ne == (D * Hk, T, 1, 1):
        operands = dict(zip(("x", "pos", "freq_factors"), rotated.src, strict=False))
        operands |= {"ids": ids, "dst": dst}
        yield Step(y, (rotated, y), operands, {"y": y})


# --- bias ---------------------------------------------------------------------------------------


def bias(steps: list[Step], accept: Accept) -> list[Step]:
    """A product, and a vector added to each of its rows."""
    return _fused(steps, accept, (PRODUCTS, ADD), _product_and_bias)


def _product_and_bias(product: Tensor, y: Tensor) -> Iterable[Step]:
    vector = y.src[1]
    if _row_by_row(product, y) and vector.is_leaf and vector.spec.n_rows == 1:
        operands = dict(zip(("weight", "x", "ids"), product.src, strict=False))
        yield Step(product, (product, y), operands | {"bias": vector}, {"y": y})


# --- scan ---------------------------------------------------------------------------------------


def scan(steps: list[Step], accept: Accept) -> list[Step]:
    """A scan of sequences whose states are rows of a table, and the writing of the new ones."""
    steps = _fused(steps, accept, ({"ssm_scan"}, {"set_rows"}), _scan_set_rows)
    return _fused(steps, accept, ({"get_rows"}, SCANS, {"set_rows"}), _get_rows_scan_set_rows)


def _scan_set_rows(scanned: Tensor, stored: Tensor) -> Iterable[Step]:
    operands = _sources(scanned)
    if "spans" in operands and operands["s"].root is stored.src[2].root:
        yield from _stored_scan((scanned, stored), scanned, operands, "s", 3)


def _get_rows_scan_set_rows(read: Tensor, scanned: Tensor, stored: Tensor) -> Iterable[Step]:
    operands = _sources(scanned)
    table, ids = read.src
    state = operands["state"]
    whole = (
        state.root is read and state.contiguous and state.spec.n_elements == read.spec.n_elements
    )
    if "spans" in operands and whole and table.root is stored.src[2].root:
        spans = operands.pop("spans")
        operands |= {"state": table, "ids": ids, "spans": spans}
        yield from _stored_scan((read, scanned, stored), scanned, operands, "state", 1)


def _sources(node: Tensor) -> dict[str, Tensor]:
    assert node.op is not None
    return dict(zip(node.op.source_names(len(node.src)), node.src, strict=True))


def _stored_scan(
    nodes: tuple[Tensor, ...], scanned: Tensor, operands: dict[str, Tensor], table: str, axis: int
) -> Iterable[Step]:
    """Where the new states are all that set_rows writes, into the rows of the table, along `axis`,
    that the old ones are read from: a row of both is one state, and has one number."""
    assert scanned.op is not None
    rows, to, dst = nodes[-1].src
    values = operands["x" if "x" in operands else "v"]  # [D, H, T]
    n_outputs = values.ne[0] * values.ne[1] * int(values.ne[2])  # as many as there is room for
    states = rows.root is scanned and rows.contiguous and rows.ne[2:] == (1, 1)
    states = states and rows.view_offs == n_outputs * rows.nb[0]
    ids, spans = operands["ids"], operands["spans"]
    one_each = ids.ne == to.ne == (spans.ne[1], 1, 1, 1) and rows.ne[1] == spans.ne[1]
    operands |= {"to": to, "dst": dst}
    same_rows = _replaces_rows(operands, operands[table], axis)
    if states and one_each and same_rows and scanned.op.params().get("K", 1) == 1:
        results = {"y": scanned, "stored": nodes[-1]}
        yield Step(scanned, nodes, operands, results, updates={"stored": (table,)})


def _replaces_rows(operands: Mapping[str, Tensor], table: Tensor, axis: int) -> bool:
    """Whether the rows of a table that a scan reads, `ids` along an axis, and those of `dst` that
    it writes, `to`, are the same rows by the same numbers; and all of these tensors are contiguous.
    """
    dst = operands["dst"]
    plain = all(x.contiguous for x in (table, dst, operands["ids"], operands["to"]))
    return plain and _rows_along(table, axis) == _rows_along(dst, 1)


def _rows_along(x: Tensor, axis: int) -> tuple[object, ...]:
    """Where the rows of x along an axis are: the first one, elements and bytes of each, how many;
    and that there are no further dimensions."""
    n = math.prod(x.ne[:axis])
    return x.view_offs, n, x.nb[axis], x.ne[axis], math.prod(x.ne[axis + 1 :])
