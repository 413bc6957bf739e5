"""What tests of passes share: leaves and nodes of a pattern, and the steps that they become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ggmlpy import ops
from ggmlpy.backends.base import Backend
from ggmlpy.backends.null import NullBackend
from ggmlpy.backends.step import Step
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
from ggmlpy.ops.rope import RopeMode
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.executable import scheduled

RNG = np.random.default_rng(0)


def steps(
    outputs: Sequence[Tensor],
    passes: str | Iterable[str] = "all",
    *backends: Backend,
    pin: Pin | None = None,
) -> list[Step]:
    """Those of a graph, by default on a backend that runs every step."""
    schedule = scheduled(Graph(*outputs), backends or [NullBackend()], pin, passes)
    return [step for split in schedule.splits for step in split.steps]


def ops_of(outputs: Sequence[Tensor], passes: str | Iterable[str] = "all") -> list[str]:
    return [step.op for step in steps(outputs, passes)]


def floats(*ne: int) -> Tensor:
    return from_numpy(RNG.standard_normal(ne[::-1]).astype(np.float32))


def computed(*ne: int) -> Tensor:
    """A node: its memory is given to others after its last use."""
    return ops.neg(floats(*ne))


def weight(*ne: int) -> Tensor:
    values = RNG.standard_normal(ne[::-1]).astype(np.float32)
    return from_bytes(values.tobytes(), "f32", ne)


def ids(*values: int, type: str = "int64") -> Tensor:
    return from_numpy(np.array(values, type))


# --- one result of each pattern, and what it reads from memory ------------------------------------


def norm(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    x, w = computed(*ne), floats(ne[0])
    return ops.mul(ops.norm(x, 1e-5), w), {"x": x, "weight": w}


def norm_and_bias(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    w, b = floats(ne[0]), computed(*ne)
    x = ops.sqr(b)  # so that b is computed before, not between product and sum
    return ops.add(ops.mul(ops.rms_norm(x, 1e-5), w), b), {"x": x, "weight": w, "b": b}


def residual(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    a, b, w = computed(*ne), computed(*ne), floats(ne[0])
    y = ops.mul(ops.rms_norm(ops.add(a, b), 1e-5), w)
    return y, {"a": a, "b": b, "weight": w}


def residual_of_norm(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    b, w, inner = computed(*ne), floats(ne[0]), floats(ne[0])
    a = ops.sqr(b)  # so that b is computed before, not between the norm and the sum
    total = ops.add(ops.mul(ops.rms_norm(a, 1e-6), inner), b)
    y = ops.mul(ops.rms_norm(total, 1e-5), w)
    return y, {"a": a, "inner": inner, "b": b, "weight": w}


def glu(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    x, gate, up = computed(*ne), weight(ne[0], 5), weight(ne[0], 5)
    y = ops.swiglu_oai(ops.mul_mat(gate, x), ops.mul_mat(up, x), 1.702, 7.0)
    return y, {"gate": gate, "up": up, "x": x}


def glu_of_experts(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    n = ne[1] if len(ne) > 1 else 1
    x, gate, up = computed(ne[0], 1, n), weight(ne[0], 5, 3), weight(ne[0], 5, 3)
    chosen = from_numpy(RNG.integers(0, 3, (n, 2)).astype(np.int32))
    gated = (ops.mul_mat_id(w, x, chosen) for w in (gate, up))
    return ops.geglu_split(*gated), {"gate": gate, "up": up, "x": x, "ids": chosen}


def rope(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    n_heads, n = (*ne, 1, 1)[1:3]
    D = 2 * ne[0]
    x, pos = computed(D, n_heads, n), ids(*range(7, 7 + n), type="int32")
    factors = from_numpy(RNG.uniform(1, 8, ne[0]).astype(np.float32))
    rotated = ops.rope_ext(x, pos, factors, D, RopeMode.NEOX, 0, 10_000.0, 1.0, 0.0, 1.0, 0.0, 0.0)
    cache = zeros("f16", (D * n_heads, 12), flags=Flag.STATE)
    rows = ids(*RNG.permutation(12)[:n])
    y = ops.set_rows(cache, ops.reshape_2d(rotated, D * n_heads, n), rows)
    return y, {"x": x, "pos": pos, "freq_factors": factors, "ids": rows, "dst": cache}


def bias(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    x, w, b = computed(*ne), weight(ne[0], 5), floats(5)
    return ops.add(ops.mul_mat(w, x), b), {"weight": w, "x": x, "bias": b}


def scan(*ne: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Heads of ne[0], and two sequences of the other dimensions' product and one more tokens."""
    D, n = ne[0], int(np.prod(ne[1:]))
    q, k, v = floats(D, 1, n + 1), floats(D, 1, n + 1), computed(D, 1, n + 1)
    decay, beta = floats(1, 1, n + 1), floats(1, 1, n + 1)
    table = zeros("f32", (D * D, 4), flags=Flag.STATE)
    rows, to = ids(3, 1, type="int32"), ids(1, 0, type="int32")
    spans = from_numpy(np.array([[0, n], [n, 1]], np.int32))
    state = ops.reshape_4d(ops.get_rows(table, rows), D, D, 1, 2)
    made = ops.gated_delta_net(q, k, v, decay, beta, state, spans=spans)
    after = ops.view_2d(made, D * D, 2, 4 * D * D, 4 * D * (n + 1))
    operands = {"q": q, "k": k, "v": v, "g": decay, "beta": beta, "state": table, "ids": rows}
    return ops.set_rows(table, after, to), operands | {"spans": spans, "to": to, "dst": table}


PATTERNS = {
    "norm+mul": norm,
    "rms_norm+mul+add": norm_and_bias,
    "add+rms_norm+mul": residual,
    "rms_norm+mul+add+rms_norm+mul": residual_of_norm,
    "mul_mat+mul_mat+swiglu_oai": glu,
    "mul_mat_id+mul_mat_id+geglu": glu_of_experts,
    "rope+set_rows": rope,
    "mul_mat+add": bias,
    "get_rows+gated_delta_net+set_rows": scan,
}
