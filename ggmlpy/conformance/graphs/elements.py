"""Single nodes of random graphs: each function adds one, with the leaves that it takes."""

from __future__ import annotations

from math import prod

from ggmlpy.conformance.cases.sizes import BINARY, FLOATS, GLU, UNARY, WRITABLE
from ggmlpy.conformance.graphs.drawing import FEW, ROWS, Drawing, is_float

_BOUNDED = ("tanh", "sigmoid", "hardsigmoid")  # without which values grow from node to node


def unary(d: Drawing) -> None:
    op = d.rng.choice((*UNARY, *_BOUNDED, *_BOUNDED, "sqr", "sqrt", "log", "sin", "cos"))
    op = d.rng.choice(("exp", "expm1")) if d.chance(0.05) else op
    d.add(op, [d.pick(is_float)])


def with_numbers(d: Drawing) -> None:
    numbers = [d.rng.choice((0.0, 1.0, -0.5, 2.5, 1e-6, 100.0)) for _ in range(4)]
    op, names = d.rng.choice((
        ("scale", "s"), ("scale_bias", "s b"), ("clamp", "min max"),
        ("leaky_relu", "negative_slope"), ("xielu", "alpha_n alpha_p beta eps"),
    ))  # fmt: skip
    params = dict(zip(names.split(), numbers, strict=False))
    if op == "clamp":
        params = {"min": min(numbers[:2]), "max": max(numbers[:2])}
    d.add(op, [d.pick()], **params)


def binary(d: Drawing) -> None:
    """Of two values of one shape, or with a leaf that is repeated."""
    a = d.pick(is_float)
    ne = d.tensors[a].ne
    if d.chance(0.4):
        b = d.leaf("f32", tuple(d.rng.choice((n, 1, n, d.divisor(n))) for n in ne))
    else:
        b = a if d.chance(0.1) else d.like(a)
    d.add(d.rng.choice((*BINARY, "add", "sub", "mul")), [a, b])


def glu(d: Drawing) -> None:
    op = d.rng.choice(GLU)
    form = d.rng.choice(("", "_swapped", "_split"))
    x = d.pick()
    if form == "_split":
        d.add(op + form, [x, d.leaf("f32", d.tensors[x].ne)])
    else:
        d.add(op + form, [x])


def get_rows(d: Drawing) -> None:
    if d.chance(0.5):
        n = d.rng.choice(ROWS)
        table = d.leaf(d.type_for(n), (n, d.rng.choice(FEW), *(d.ne()[2:])), "uniform", weight=True)
    else:
        table = d.pick(is_float)
    _, n_rows, a, b = d.tensors[table].ne
    ids = d.leaf("i32", (d.rng.choice(FEW), a, b), "ids", limit=n_rows)
    d.add("get_rows", [table, ids])


def copy(d: Drawing) -> None:
    x = d.pick(is_float)
    ne = d.tensors[x].ne
    what = d.rng.choice(("cont", "dup", "cast", "cont_2d"))
    types = WRITABLE if ne[0] % 32 == 0 else FLOATS
    if what == "cast":
        d.add(what, [x], type=d.rng.choice(types))
    elif what == "cont_2d":
        d.add(what, [x], ne0=ne[0] * ne[1], ne1=ne[2] * ne[3])
    else:
        d.add(what, [x])


def view(d: Drawing) -> None:
    x = d.pick(is_float)
    t = d.tensors[x]
    what = d.rng.choice(("permute", "transpose", "reshape_2d", "window", "row", "reshape_3d"))
    if what == "permute":
        axes = d.rng.sample(range(4), 4)
        d.add(what, [x], **{f"axis{i}": axis for i, axis in enumerate(axes)})
    elif what == "transpose":
        d.add(what, [x])
    elif what == "reshape_2d":
        d.add(what, [x], ne0=t.ne[0] * t.ne[1], ne1=t.ne[2] * t.ne[3])
    elif what == "reshape_3d":
        k = d.divisor(t.ne[0])
        d.add(what, [x], ne0=k, ne1=t.ne[0] // k, ne2=prod(t.ne[1:]))
    elif what == "row":
        size = t.type.type_size
        start = d.rng.randrange(t.ne[0])
        d.add("view_1d", [x], ne0=t.ne[0] - start, offset=start * size)
    else:
        first = [d.rng.randrange(n) for n in t.ne]
        ne = {f"ne{i}": d.rng.randint(1, n - first[i]) for i, n in enumerate(t.ne)}
        nb = {f"nb{i}": t.nb[i] for i in (1, 2, 3)}
        offset = sum(i * nb for i, nb in zip(first, t.nb, strict=True))
        d.add("view_4d", [x], **ne, **nb, offset=offset)
