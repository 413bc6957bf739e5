"""Nodes that belong together: what passes fuse and what they must not, caches, shared sources.

`_loosen` makes a pattern that passes know into its almost-fusable cousins: an inner value that
something else reads as well, or that is wanted.
"""

from __future__ import annotations

from math import prod

from ggmlpy.conformance.cases.sizes import CACHE_TYPES, FLOATS, WRITABLE
from ggmlpy.conformance.graphs.drawing import FEW, ROWS, Drawing, Refused, is_f32, is_float

_GATED_UNITS = ("swiglu", "geglu", "reglu", "geglu_erf", "geglu_quick")


def _loosen(d: Drawing, *inner: str) -> None:
    """Nothing, or another reader of an inner value, or its being wanted."""
    if not d.chance(0.35):
        return
    value = d.rng.choice(inner)
    how = d.rng.choice(("reader", "wanted", "view", "written"))
    if how == "wanted":
        d.want(value)
    elif how == "reader":
        d.add(d.rng.choice(("neg", "relu", "abs")), [value])
    elif how == "view":
        d.add("transpose", [value])
    else:
        d.add("cpy", [d.leaf("f32", d.tensors[value].ne), value])


def residual(d: Drawing) -> None:
    """add + rms_norm + mul, also after rms_norm + mul."""
    a = d.pick()
    ne = d.tensors[a].ne
    if prod(ne) > 2000:
        raise Refused
    inner = []
    if d.chance(0.4):
        a = _normed(d, a, "rms_norm")
        inner.append(a)
    b = d.like(a)
    total = d.add("add", [a, b] if d.chance(0.8) else [b, a])
    y = _normed(d, total, "rms_norm", others=(a, b))
    _loosen(d, total, *inner)
    if d.chance(0.4):
        d.add("add", [y, total])


def _normed(d: Drawing, x: str, op: str, others: tuple[str, ...] = ()) -> str:
    """x's norm times a vector, most of the time; else times x or another."""
    n = d.tensors[x].ne[0]
    y = d.add(op, [x], eps=d.rng.choice((1e-5, 1e-6, 0.1)))
    weight = d.rng.choice((x, *others))
    if d.chance(0.8):
        weight = d.leaf("f32", (n,), weight=d.chance(0.7))
    return d.add("mul", [y, weight] if d.chance(0.9) else [weight, y])


def norm(d: Drawing) -> None:
    """A norm alone, or with a product and a sum with vectors."""
    x = d.pick()
    op = d.rng.choice(("rms_norm", "rms_norm", "norm", "l2_norm", "group_norm"))
    if op == "group_norm":
        d.add(op, [x], n_groups=d.rng.choice((1, 2, 3)), eps=d.rng.choice((1e-5, 0.1)))
        return
    if op == "l2_norm" or d.chance(0.2):
        d.add(op, [x], eps=d.rng.choice((1e-5, 0.1)))
        return
    y = _normed(d, x, op)
    if d.chance(0.5):
        d.add("add", [y, d.leaf("f32", (d.tensors[y].ne[0],), weight=d.chance(0.5))])
    _loosen(d, y)


def product(d: Drawing) -> None:
    """Products of one x: alone, with a bias, two and their gated unit, or several of other rows."""
    x = d.pick(is_float)
    m, type = d.rng.choice(ROWS), d.type_for(d.tensors[x].ne[0])
    stack = _stack(d, x) if d.chance(0.4) else ()
    first = _product(d, x, type, m, stack)
    form = d.rng.choice(("alone", "bias", "gated", "gated", "several", "next", "next"))
    if form == "bias":
        bias = first
        if d.chance(0.8):
            ne = (m,) if d.chance(0.7) else d.tensors[first].ne
            bias = d.leaf("f32", ne, weight=d.chance(0.7))
        d.add("add", [first, bias])
        _loosen(d, first)
    elif form == "gated":
        other = x if d.chance(0.7) else d.like(x)
        second_type = type if d.chance(0.9) else d.type_for(d.tensors[x].ne[0])
        second = _product(d, other, second_type, m, stack if d.chance(0.7) else _stack(d, x))
        pair: list[str | None] = [first, second] if d.chance(0.7) else [second, first]
        d.add(f"{d.rng.choice(_GATED_UNITS)}_split", pair)
        _loosen(d, first, second)
    elif form == "several":
        for _ in range(d.rng.choice((1, 2))):
            other_type = type if d.chance(0.5) else d.type_for(d.tensors[x].ne[0])
            _product(d, x, other_type, d.rng.choice(ROWS), stack)
    elif form == "next":
        _next_product(d, x, type, m)


def _stack(d: Drawing, x: str) -> tuple[int, ...]:
    _, _, a, b = d.tensors[x].ne
    return d.divisor(a), d.divisor(b)


def _product(d: Drawing, x: str, type: str, m: int, stack: tuple[int, ...] = ()) -> str:
    ne = (d.tensors[x].ne[0], m, *stack)
    return d.add("mul_mat", [d.leaf(type, ne, "uniform", weight=d.chance(0.8)), x])


def _next_product(d: Drawing, x: str, type: str, m: int) -> None:
    """A product of what lies where x lay, or is like it: its activations are others."""
    how = d.rng.choice(("over", "over", "written", "like"))
    if how == "over":
        other = d.add(d.rng.choice(("relu", "neg", "tanh")), [x])
    elif how == "written":
        other = d.add("cpy", [d.leaf("f32", d.tensors[x].ne), x])
    else:
        other = d.like(x)
    _product(d, other, type, m)


def experts(d: Drawing) -> None:
    """A product by listed matrices: alone, with biases, or two and their gated unit."""
    x = d.pick(lambda t: is_f32(t) and t.ne[3] == 1)
    k, _, n, _ = d.tensors[x].ne
    n_expert = d.rng.choice((2, 3, 4, 6))
    ids = d.leaf("i32", (d.rng.randint(1, n_expert), n), "ids", limit=n_expert, unique=True)
    m, type = d.rng.choice(ROWS[:14]), d.type_for(k)

    def of() -> str:
        weight = d.leaf(type, (k, m, n_expert), "uniform", weight=True)
        return d.add("mul_mat_id", [weight, x, ids])

    first = of()
    if d.chance(0.4):
        second = of()
        d.add(f"{d.rng.choice(_GATED_UNITS)}_split", [first, second])
        _loosen(d, first, second)
    elif d.chance(0.5):
        d.add("add_id", [first, d.leaf("f32", (m, n_expert)), ids])


def routing(d: Drawing) -> None:
    """The largest of some scores pick matrices, or rows; their weights are rows of the scores."""
    scores = d.pick(lambda t: is_f32(t) and t.ne[2] * t.ne[3] == 1 and 2 <= t.ne[0] <= 64)
    n, n_tokens, _, _ = d.tensors[scores].ne
    picked = d.add("top_k", [scores], k=d.rng.randint(1, min(n, 4)))
    if d.chance(0.6):
        k = d.rng.choice((7, 32, 64))
        x = d.leaf("f32", (k, 1, n_tokens), "uniform")
        weight = d.leaf(d.type_for(k), (k, d.rng.choice((3, 16, 17)), n), "uniform", weight=True)
        d.add("mul_mat_id", [weight, x, picked])
    if d.chance(0.6):
        rows = d.add("reshape_3d", [scores], ne0=1, ne1=n, ne2=n_tokens)
        d.add("get_rows", [rows, picked])


def rope(d: Drawing) -> None:
    """Rows rotated; written into a cache half of the time, also read otherwise."""
    x = d.pick(lambda t: t.type.name in ("f32", "f16") and t.ne[0] % 2 == 0)
    n, _, n_tokens, _ = d.tensors[x].ne
    pos = d.leaf("i32", (n_tokens,), "ids", limit=512)
    n_dims = d.rng.choice((n, n, max(n // 4 * 2, 2)))
    factors = d.leaf("f32", (n_dims // 2,), "positive") if d.chance(0.3) else None
    y = d.add(
        "rope_ext", [x, pos, factors], n_dims=n_dims, mode=d.rng.choice((0, 2)), n_ctx_orig=512,
        freq_base=d.rng.choice((10000.0, 500.0)), freq_scale=d.rng.choice((1.0, 0.25)),
        ext_factor=d.rng.choice((0.0, 0.0, 1.0)), attn_factor=1.0, beta_fast=32.0, beta_slow=1.0,
    )  # fmt: skip
    _, heads, n_tokens, n_seq = d.tensors[y].ne
    if n_seq == 1 and d.chance(0.6):
        width = n * heads if d.chance(0.8) else n
        rows = d.add("reshape_2d", [y], ne0=width, ne1=n * heads // width * n_tokens)
        cached = _written_rows(d, rows, _cache_for(d, rows))
        _loosen(d, y, rows)
        _read_cache(d, cached)


def shift(d: Drawing) -> None:
    """Rows of a cache rotated, and written to it again in another order."""
    n, heads, n_tokens = d.rng.choice((2, 8, 32)), d.rng.choice((1, 2, 3)), d.rng.choice((2, 3, 5))
    type = d.rng.choice(("f32", "f32", "f16"))
    state = d.leaf(type, (n * heads, n_tokens), "uniform", state=d.chance(0.7))
    x = d.add("reshape_3d", [state], ne0=n, ne1=heads, ne2=n_tokens)
    pos = d.leaf("i32", (n_tokens,), "ids", limit=512)
    if type == "f16" and d.chance(0.5):
        x = d.add("cast", [x], type="f32")
    y = d.add("rope", [x, pos], n_dims=n, mode=d.rng.choice((0, 2)))
    rows = d.add("reshape_2d", [y], ne0=n * heads, ne1=n_tokens)
    _read_cache(d, _written_rows(d, rows, state))


def cache(d: Drawing) -> None:
    """Rows written into a state, once or twice, and what was written is read; also the state
    itself, before and after."""
    x = d.pick(lambda t: t.type.name in ("f32", "f16"))
    raw = _cache_for(d, x)
    if d.chance(0.3):
        d.add("cast", [raw], type="f32")
    written = _written_rows(d, x, raw)
    if d.chance(0.3):
        written = _written_rows(d, x, written if d.chance(0.7) else raw)
    if d.chance(0.3):
        d.add("cast", [raw], type="f32")
    _read_cache(d, written)


def _cache_for(d: Drawing, x: str) -> str:
    """A leaf of some more rows than x has."""
    n, rows, a, b = d.tensors[x].ne
    types = WRITABLE if n % 32 == 0 else FLOATS
    ne = (n, rows + d.rng.choice((0, 1, 5)), a, b)
    return d.leaf(d.rng.choice(types), ne, "uniform", state=d.chance(0.7))


def _written_rows(d: Drawing, x: str, into: str) -> str:
    _, rows, a, b = d.tensors[x].ne
    per = [m if d.chance(0.5) else 1 for m in (a, b)]
    limit = d.tensors[into].ne[1]
    ids = d.leaf(d.rng.choice(("i32", "i64")), (rows, *per), "ids", limit=limit, unique=True)
    return d.add("set_rows", [into, x, ids])


def _read_cache(d: Drawing, cached: str) -> None:
    """A product with the rows, some of them, or a window as floats."""
    t = d.tensors[cached]
    n, n_rows, a, b = t.ne
    how = d.rng.choice(("", "product", "rows", "window"))
    if how == "product" and t.type.name in CACHE_TYPES:
        d.add("mul_mat", [cached, d.leaf("f32", (n, d.rng.choice(FEW), a, b))])
    elif how == "rows":
        ids = d.leaf("i32", (d.rng.choice(FEW), a, b), "ids", limit=n_rows)
        d.add("get_rows", [cached, ids])
    elif how == "window":
        first = d.rng.randrange(n_rows)
        nb = {f"nb{i}": t.nb[i] for i in (1, 2, 3)}
        shape = {"ne0": n, "ne1": n_rows - first, "ne2": a, "ne3": b}
        view = d.add("view_4d", [cached], **shape, **nb, offset=first * t.nb[1])
        d.add("cast", [view], type="f32")


def write(d: Drawing) -> None:
    """A copy into a leaf, into a window of one, or of a computed value, and a reader of it."""
    x = d.pick(is_float)
    ne = d.tensors[x].ne
    types = WRITABLE if ne[0] % 32 == 0 else FLOATS
    where = d.rng.choice(("leaf", "flat", "window", "computed", "shifted"))
    if where in ("leaf", "flat"):
        shape = ne if where == "leaf" else (ne[0], prod(ne[1:]))
        into = d.leaf(d.rng.choice(types), shape, "uniform", state=d.chance(0.5))
    elif where == "computed":
        into = d.pick(lambda t: t.ne == ne and is_f32(t) and not t.is_leaf and t.root is t)
    else:
        longer = (ne[0], ne[1] + d.rng.choice((1, 3)), ne[2], ne[3])
        whole = d.leaf(d.rng.choice(types), longer, "uniform", state=d.chance(0.5))
        t = d.tensors[whole]
        nb = {f"nb{i}": t.nb[i] for i in (1, 2, 3)}
        shape4 = {f"ne{i}": n for i, n in enumerate(ne)}
        offset = (longer[1] - ne[1]) * t.nb[1]
        into = d.add("view_4d", [whole], **shape4, **nb, offset=offset)
        if where == "shifted" and d.chance(0.5):
            x = d.add("view_4d", [whole], **{**shape4, "ne1": 1}, **nb, offset=0)
            x = d.add("repeat_4d", [d.add("cast", [x], type="f32")], **shape4)
    y = d.add("cpy", [x, into])
    if d.chance(0.6):
        d.add("cast", [y if d.chance(0.6) else into], type="f32")
