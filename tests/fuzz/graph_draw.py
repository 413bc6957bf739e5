"""Random graphs: nodes drawn one after the other, those that models have together."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

from ggmlpy.conformance.cases.sizes import BINARY, FLOATS, GLU, UNARY, WRITABLE
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.types import F32
from tests.fuzz.graph_recipe import FEW, ROWS, Drawing, Node

_GATED_UNITS = ("swiglu", "geglu", "reglu", "geglu_erf", "geglu_quick")


def draw_graph(rng: random.Random) -> list[Node]:
    """A few nodes, or a dozen."""
    drawing = Drawing(rng)
    drawing.leaf("f32", drawing.ne())
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8, 12))):
        try:
            rng.choice(_MAKERS)(drawing)
        except GgmlpyError:
            continue
    return drawing.nodes


# ---- makers: each adds a node, or a few that belong together


def _unary(d: Drawing) -> None:
    op = d.rng.choice((*UNARY, "sqr", "sqrt", "log", "sin", "cos", "exp", "expm1"))
    d.add(op, [d.pick(lambda t: t.type.is_float)])


def _with_numbers(d: Drawing) -> None:
    numbers = [d.rng.choice((0.0, 1.0, -0.5, 2.5, 1e-6, 100.0)) for _ in range(4)]
    op, names = d.rng.choice((
        ("scale", "s"), ("scale_bias", "s b"), ("clamp", "min max"),
        ("leaky_relu", "negative_slope"), ("xielu", "alpha_n alpha_p beta eps"),
    ))  # fmt: skip
    params = dict(zip(names.split(), numbers, strict=False))
    if op == "clamp":
        params = {"min": min(numbers[:2]), "max": max(numbers[:2])}
    d.add(op, [d.pick()], **params)


def _binary(d: Drawing) -> None:
    a = d.pick(lambda t: t.type.is_float)
    ne = d.tensors[a].ne
    same = [n for n, t in d.tensors.items() if t.ne == ne and t.type is F32 and n not in d.written]
    if same and d.rng.random() < 0.5:
        b = d.rng.choice(same)
    else:
        b = d.leaf("f32", tuple(d.rng.choice((n, 1, n, _divisor(d.rng, n))) for n in ne))
    d.add(d.rng.choice(BINARY), [a, b])


def _divisor(rng: random.Random, n: int) -> int:
    return rng.choice([k for k in (1, 2, 3, 5, 7) if n % k == 0])


def _norm(d: Drawing) -> None:
    """Alone, or as models have it: after a sum, before a product and a sum with vectors."""
    x = d.pick()
    if d.rng.random() < 0.4:
        x = d.add("add", [x, d.leaf("f32", d.tensors[x].ne)])
    op = d.rng.choice(("rms_norm", "rms_norm", "norm", "l2_norm", "group_norm"))
    eps = d.rng.choice((1e-5, 1e-6, 0.1))
    if op == "group_norm":
        d.add(op, [x], n_groups=d.rng.choice((1, 2, 3)), eps=eps)
        return
    y = d.add(op, [x], eps=eps)
    n = d.tensors[x].ne[0]
    if d.rng.random() < 0.7:
        y = d.add("mul", [y, d.leaf("f32", (n,))])
        if d.rng.random() < 0.5:
            d.add("add", [y, d.leaf("f32", (n,))])


def _glu(d: Drawing) -> None:
    op = d.rng.choice(GLU)
    form = d.rng.choice(("", "_swapped", "_split"))
    x = d.pick()
    if form == "_split":
        d.add(op + form, [x, d.leaf("f32", d.tensors[x].ne)])
    else:
        d.add(op + form, [x])


def _product(d: Drawing) -> None:
    """Alone, or with a bias, or two of one x and their gated unit."""
    x = d.pick(lambda t: t.type.name in FLOATS)
    ne = d.tensors[x].ne
    m = d.rng.choice(ROWS)

    form = d.rng.random()

    def product() -> str:
        stack = (_divisor(d.rng, ne[2]), _divisor(d.rng, ne[3])) if d.rng.random() < 0.5 else ()
        weight = d.leaf(d.type_for(ne[0]), (ne[0], m, *stack), "uniform", weight=True)
        return d.add("mul_mat", [weight, x])

    first = product()
    if form < 0.25:
        d.add("add", [first, d.leaf("f32", (m,))])
    elif form < 0.5:
        d.add(f"{d.rng.choice(_GATED_UNITS)}_split", [first, product()])


def _experts(d: Drawing) -> None:
    x = d.pick(lambda t: t.type is F32 and t.ne[3] == 1)
    k, _, n, _ = d.tensors[x].ne
    n_expert = d.rng.choice((2, 3, 4, 6))
    n_used = d.rng.randint(1, n_expert)
    weight = d.leaf(d.type_for(k), (k, d.rng.choice(ROWS), n_expert), "uniform", weight=True)
    ids = d.leaf("i32", (n_used, n), "ids", limit=n_expert, unique=True)
    d.add("mul_mat_id", [weight, x, ids])


def _get_rows(d: Drawing) -> None:
    if d.rng.random() < 0.5:
        n = d.rng.choice(ROWS)
        table = d.leaf(d.type_for(n), (n, d.rng.choice(FEW), *(d.ne()[2:])), "uniform", weight=True)
    else:
        table = d.pick(lambda t: t.type.name in FLOATS)
    _, n_rows, a, b = d.tensors[table].ne
    ids = d.leaf("i32", (d.rng.choice(FEW), a, b), "ids", limit=n_rows)
    d.add("get_rows", [table, ids])


def _set_rows(d: Drawing, x: str = "") -> None:
    x = x or d.pick(lambda t: t.type.name in ("f32", "f16"))
    n, rows, a, b = d.tensors[x].ne
    types = WRITABLE if n % 32 == 0 else FLOATS
    n_rows = rows + d.rng.choice((0, 1, 5))
    into = d.leaf(d.rng.choice(types), (n, n_rows, a, b), "uniform", state=True)
    d.written.add(into)
    per = [m if d.rng.random() < 0.5 else 1 for m in (a, b)]
    ids = d.leaf(d.rng.choice(("i32", "i64")), (rows, *per), "ids", limit=n_rows, unique=True)
    d.add("set_rows", [into, x, ids])


def _copy(d: Drawing) -> None:
    x = d.pick(lambda t: t.type.name in FLOATS)
    ne = d.tensors[x].ne
    what = d.rng.choice(("cpy", "cont", "dup", "cast", "cont_2d"))
    types = WRITABLE if ne[0] % 32 == 0 else FLOATS
    if what == "cpy":
        shape = ne if d.rng.random() < 0.5 else (ne[0], prod(ne[1:]))
        into = d.leaf(d.rng.choice(types), shape, "uniform", state=True)
        d.written.add(into)
        d.add(what, [x, into])
    elif what == "cast":
        d.add(what, [x], type=d.rng.choice(types))
    elif what == "cont_2d":
        d.add(what, [x], ne0=ne[0] * ne[1], ne1=ne[2] * ne[3])
    else:
        d.add(what, [x])


def _view(d: Drawing) -> None:
    x = d.pick(lambda t: t.type.name in FLOATS)
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
        k = _divisor(d.rng, t.ne[0])
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


def _rope(d: Drawing) -> None:
    """Alone, or written into a cache."""
    x = d.pick(lambda t: t.type.name in ("f32", "f16") and t.ne[0] % 2 == 0)
    n, _, n_tokens, _ = d.tensors[x].ne
    pos = d.leaf("i32", (n_tokens,), "ids", limit=512)
    n_dims = d.rng.choice((n, n, max(n // 4 * 2, 2)))
    factors = d.leaf("f32", (n_dims // 2,), "positive") if d.rng.random() < 0.3 else None
    y = d.add(
        "rope_ext", [x, pos, factors], n_dims=n_dims, mode=d.rng.choice((0, 2)), n_ctx_orig=512,
        freq_base=d.rng.choice((10000.0, 500.0)), freq_scale=d.rng.choice((1.0, 0.25)),
        ext_factor=d.rng.choice((0.0, 0.0, 1.0)), attn_factor=1.0, beta_fast=32.0, beta_slow=1.0,
    )  # fmt: skip
    if d.rng.random() < 0.5:
        _, heads, n_tokens, n_seq = d.tensors[y].ne
        if n_seq == 1:
            _set_rows(d, d.add("reshape_2d", [y], ne0=n * heads, ne1=n_tokens))


def _softmax(d: Drawing) -> None:
    x = d.pick()
    if d.rng.random() < 0.3:
        d.add("soft_max", [x])
        return
    n_kv, n_query, heads, n_seq = d.tensors[x].ne
    mask = None
    if d.rng.random() < 0.7:
        ne = n_kv, n_query, _divisor(d.rng, heads), _divisor(d.rng, n_seq)
        mask = d.leaf(d.rng.choice(("f16", "f32")), ne, "mask")
    bias = 8.0 if mask and d.rng.random() < 0.3 else 0.0
    y = d.add("soft_max_ext", [x, mask], scale=d.rng.choice((1.0, 0.125)), max_bias=bias)
    if d.rng.random() < 0.3:
        d.add("soft_max_add_sinks", [y, d.leaf("f32", (heads,))])


def _attention(d: Drawing) -> None:
    size, size_v = d.rng.choice((16, 32, 40, 64, 65, 80, 128)), 0
    size_v = size if d.rng.random() < 0.8 else d.rng.choice((16, 32, 64))
    heads_kv, n_seq = d.rng.choice((1, 1, 2, 3)), d.rng.choice((1, 1, 2, 3))
    heads, n_query = heads_kv * d.rng.choice((1, 2, 4)), d.rng.choice((1, 1, 2, 3, 5, 17))
    n_kv = d.rng.choice((1, 2, 5, 16, 31, 32, 33, 64))
    types = ("f32", "f16", "bf16") + (("q8_0", "q4_0", "q5_1", "iq4_nl") if size % 32 == 0 else ())
    type_k, type_v = d.rng.choice(types), d.rng.choice(types)
    if size_v % 32:
        type_v = "f16"
    lists: list[str] = []
    n_stream = n_seq
    if d.rng.random() < 0.4:
        n_list, n_stream = d.rng.choice((1, 2, 3)), d.rng.choice((1, 1, 2, 3))
        cells = (n_max := d.rng.choice((1, 3, 16, 65)), n_list)
        lists = [
            d.leaf("i32", cells, "ids", limit=n_kv * n_stream),
            d.leaf("i32", (3, n_query, n_seq), "seen", limit=n_list, entries=n_max),
        ]
    q = d.leaf("f32", (size, n_query, heads, n_seq), "uniform")
    k = d.leaf(type_k, (size, n_kv, heads_kv, n_stream), "uniform")
    v = d.leaf(type_v, (size_v, n_kv, heads_kv, n_stream), "uniform")
    mask = None
    if d.rng.random() < (0.3 if lists else 0.8):
        n_shown = n_max if lists else n_kv
        ne = n_shown, n_query, _divisor(d.rng, heads), _divisor(d.rng, n_seq)
        mask = d.leaf("f16", ne, "mask")
    bias = 8.0 if mask and d.rng.random() < 0.2 else 0.0
    softcap = d.rng.choice((0.0, 0.0, 10.0))
    sources = [q, k, v, mask, *lists]
    y = d.add("flash_attn_ext", sources, scale=0.125, max_bias=bias, logit_softcap=softcap)
    if d.rng.random() < 0.3:
        d.add("flash_attn_ext_add_sinks", [y, d.leaf("f32", (heads,))])


def _shape(d: Drawing) -> None:
    x = d.pick()
    ne = list(d.tensors[x].ne)
    what = d.rng.choice(("concat", "repeat_4d", "pad", "pad_ext"))
    few = [d.rng.choice((0, 0, 1, 3)) for _ in range(8)]
    if what == "concat":
        dim = d.rng.randrange(4)
        ne[dim] = d.rng.choice(FEW)
        d.add(what, [x, d.leaf("f32", tuple(ne))], dim=dim)
    elif what == "repeat_4d":
        d.add(what, [x], **{f"ne{i}": n * d.rng.choice((1, 1, 2, 3)) for i, n in enumerate(ne)})
    elif what == "pad":
        d.add(what, [x], **{f"p{i}": few[i] for i in range(4)})
    else:
        d.add(what, [x], **{f"{side}p{i}": few.pop() for i in range(4) for side in "lr"})


def _reduce(d: Drawing) -> None:
    x = d.pick()
    what = d.rng.choice((
        "sum", "sum_rows", "mean", "cumsum", "argmax", "argsort", "top_k", "diag_mask_inf",
    ))  # fmt: skip
    params: dict[str, Any] = {}
    if what == "argsort":
        params = {"order": d.rng.choice((0, 1))}
    elif what == "top_k":
        params = {"k": d.rng.randint(1, d.tensors[x].ne[0])}
    elif what == "diag_mask_inf":
        params = {"n_past": d.rng.randint(0, 5)}
    d.add(what, [x], **params)


def _rare(d: Drawing) -> None:
    what = d.rng.choice(("ssm_conv", "pool_2d", "gated_linear_attn", "add1", "add_id", "arange"))
    if what == "ssm_conv":
        taps, channels = d.rng.choice((1, 2, 3, 4)), d.rng.choice(ROWS)
        if d.rng.random() < 0.4:
            columns = d.leaf("f32", (channels, n := d.rng.choice((1, 2, 9))))
            listed = d.leaf("i32", (taps, d.rng.choice(FEW)), "ids", limit=n)
            d.add(what, [columns, d.leaf("f32", (taps, channels)), listed])
            return
        n_seq = d.rng.choice((1, 1, 3))
        x = d.leaf("f32", (taps - 1 + d.rng.choice((1, 2, 9)), channels, n_seq))
        d.add(what, [x, d.leaf("f32", (taps, channels))])
    elif what == "pool_2d":
        k0, k1 = d.rng.choice((1, 2, 3)), d.rng.choice((1, 2, 3))
        p0, p1 = d.rng.randrange(k0), d.rng.randrange(k1)
        d.add(what, [d.pick()], op=d.rng.choice((0, 1)), k0=k0, k1=k1, s0=1, s1=2, p0=p0, p1=p1)
    elif what == "gated_linear_attn":
        size, heads, n_seq = d.rng.choice((8, 16)), d.rng.choice((1, 3)), d.rng.choice((1, 2))
        ne = size, heads, n_seq * d.rng.choice((1, 4))
        leaves = [d.leaf("f32", ne, "uniform") for _ in range(4)]
        d.add(what, [*leaves, d.leaf("f32", (size * size * heads, n_seq), "uniform")], scale=0.5)
    elif what == "add1":
        d.add(what, [d.pick(), d.leaf("f32", (1,))])
    elif what == "add_id":
        a = d.pick(lambda t: t.type is F32 and t.ne[3] == 1)
        n, n_used, n_tokens, _ = d.tensors[a].ne
        ids = d.leaf("i32", (n_used, n_tokens), "ids", limit=5)
        d.add(what, [a, d.leaf("f32", (n, 5)), ids])
    else:
        d.add(what, [], start=-1.5, stop=d.rng.choice((0.0, 20.0)), step=0.75)


_MAKERS: tuple[Callable[[Drawing], None], ...] = (
    _unary, _unary, _with_numbers, _binary, _binary, _norm, _norm, _glu, _product, _product,
    _product, _experts, _get_rows, _set_rows, _copy, _copy, _view, _view, _view, _rope, _softmax,
    _attention, _shape, _reduce, _rare,
)  # fmt: skip
