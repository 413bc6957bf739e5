"""Larger nodes of random graphs: softmax, attention, reductions, shapes, and rare ops."""

from __future__ import annotations

from typing import Any

from ggmlpy.conformance.graphs.drawing import FEW, ROWS, Drawing
from ggmlpy.graph.types import F32


def softmax(d: Drawing) -> None:
    x = d.pick()
    if d.chance(0.3):
        d.add("soft_max", [x])
        return
    n_kv, n_query, heads, n_seq = d.tensors[x].ne
    mask = None
    if d.chance(0.7):
        ne = n_kv, n_query, d.divisor(heads), d.divisor(n_seq)
        mask = d.leaf(d.rng.choice(("f16", "f32")), ne, "mask")
    bias = 8.0 if mask and d.chance(0.3) else 0.0
    y = d.add("soft_max_ext", [x, mask], scale=d.rng.choice((1.0, 0.125)), max_bias=bias)
    if d.chance(0.3):
        d.add("soft_max_add_sinks", [y, d.leaf("f32", (heads,))])


def attention(d: Drawing) -> None:
    size, size_v = d.rng.choice((16, 32, 40, 64, 65, 80, 128)), 0
    size_v = size if d.chance(0.8) else d.rng.choice((16, 32, 64))
    heads_kv, n_seq = d.rng.choice((1, 1, 2, 3)), d.rng.choice((1, 1, 2, 3))
    heads, n_query = heads_kv * d.rng.choice((1, 2, 4)), d.rng.choice((1, 1, 2, 3, 5, 17))
    n_kv = d.rng.choice((1, 2, 5, 16, 31, 32, 33, 64))
    types = ("f32", "f16", "bf16") + (("q8_0", "q4_0", "q5_1", "iq4_nl") if size % 32 == 0 else ())
    type_k, type_v = d.rng.choice(types), d.rng.choice(types)
    if size_v % 32:
        type_v = "f16"
    lists: list[str] = []
    n_stream = n_seq
    if d.chance(0.4):
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
    if d.chance(0.3 if lists else 0.8):
        n_shown = n_max if lists else n_kv
        ne = n_shown, n_query, d.divisor(heads), d.divisor(n_seq)
        mask = d.leaf("f16", ne, "mask")
    bias = 8.0 if mask and d.chance(0.2) else 0.0
    softcap = d.rng.choice((0.0, 0.0, 10.0))
    sources = [q, k, v, mask, *lists]
    y = d.add("flash_attn_ext", sources, scale=0.125, max_bias=bias, logit_softcap=softcap)
    if d.chance(0.3):
        d.add("flash_attn_ext_add_sinks", [y, d.leaf("f32", (heads,))])


def shape(d: Drawing) -> None:
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


def reduce(d: Drawing) -> None:
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


def rare(d: Drawing) -> None:
    what = d.rng.choice(("ssm_conv", "pool_2d", "gated_linear_attn", "add1", "add_id", "arange"))
    if what == "ssm_conv":
        taps, channels = d.rng.choice((1, 2, 3, 4)), d.rng.choice(ROWS)
        if d.chance(0.4):
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
