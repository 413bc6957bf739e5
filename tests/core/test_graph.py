from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ggmlpy import ArgumentError, compute, ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros


def test_sources_come_before_nodes_left_to_right() -> None:
    a, b = from_numpy(np.zeros(4, np.float32)), from_numpy(np.zeros(4, np.float32))
    left, right = ops.silu(a), ops.sqr(b)
    total = ops.add(left, right)
    graph = Graph(total)
    assert graph.nodes == [left, right, total]
    assert graph.leafs == [a, b]
    assert len(graph) == 3
    assert list(graph) == graph.nodes
    assert total in graph
    assert ops.silu(a) not in graph


def test_a_shared_source_is_there_once() -> None:
    x = ops.silu(from_numpy(np.zeros(4, np.float32)))
    graph = Graph(ops.add(x, ops.sqr(x)), x)
    assert graph.nodes.count(x) == 1


def test_outputs_run_in_the_order_given() -> None:
    cache = zeros("f32", (4, 8), flags=Flag.STATE)
    ids = from_numpy(np.array([2], np.int64))
    write = ops.set_rows(cache, from_numpy(np.ones((1, 4), np.float32)), ids)
    read = ops.sqr(cache)
    assert Graph(write, read).nodes == [write, read]
    assert Graph(read, write).nodes == [read, write]


def test_names() -> None:
    x = from_numpy(np.zeros((2, 4), np.float32), name="x")
    with scope("blk.0"):
        y = ops.silu(ops.reshape_1d(x, 8))
    z = ops.neg(y)
    graph = Graph(z)
    assert [graph.name_of(t) for t in graph.nodes] == ["x (reshaped)", "blk.0.silu", "node_2"]
    assert graph.find("blk.0.silu") is y
    assert graph.find("x") is x
    with pytest.raises(KeyError, match="nope"):
        graph.find("nope")


def sample() -> Graph:
    w = from_bytes(bytes(18 * 4), "q4_0", (32, 4), name="w")
    x = from_numpy(np.zeros((3, 32), np.float32), name='quote " \\ x')
    return Graph(ops.mul_mat(w, ops.rms_norm(x, 1e-5)).named("y"))


def test_text_dump_shows_every_tensor() -> None:
    text = str(sample())
    assert "graph: 2 nodes, 2 leafs" in text
    assert "q4_0 [32, 4] (WEIGHT)" in text
    assert "rms_norm(eps=1e-05) of leaf 1 quote" in text
    assert "node    1: y  " in text
    assert text.endswith("mul_mat of leaf 0 w, node 0")


def test_text_dump_stands_in_columns() -> None:
    x = from_numpy(np.zeros(4, np.float32), name="x")
    lines = str(Graph(ops.neg(ops.sqr(x)).named("a name of some length"))).split("\n")[1:]
    assert len({line.index("f32 [4]") for line in lines}) == 1
    long = str(Graph(ops.neg(x).named("n" * 99))).split("\n")
    assert long[1].index("f32 [4]") < 60 < long[2].index("f32 [4]")
    assert str(Graph()) == "graph: 0 nodes, 0 leafs"


def test_sources_of_one_name_are_told_apart() -> None:
    x = from_numpy(np.zeros(4, np.float32), name="x")
    left, right = ops.silu(x).named("same"), ops.sqr(x).named("same")
    graph = Graph(ops.sub(right, left))
    assert graph.nodes == [right, left, graph.outputs[0]]
    assert str(graph).endswith("= sub of node 0 same, node 1 same")
    dot = graph.to_dot()
    assert r"sqr\nnode 0 same\nf32 [4]" in dot
    assert r"silu\nnode 1 same\nf32 [4]" in dot


def test_the_page_is_the_html_dump() -> None:
    page = sample().to_html("a <title>")
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>a &lt;title&gt;</h1>" in page
    assert "rms_norm" in page


def test_repr_says_what_it_is_a_graph_of() -> None:
    x = from_numpy(np.zeros(4, np.float32))
    assert repr(sample()) == "<Graph of y: 2 nodes, 2 leafs>"
    many = Graph(*(ops.neg(x) for _ in range(4)))
    assert repr(many) == "<Graph of node_0, node_1, node_2, …: 4 nodes, 1 leafs>"


def test_outputs_may_be_a_list() -> None:
    x = from_numpy(np.zeros(4, np.float32))
    a, b = ops.neg(x), ops.sqr(x)
    for graph in (Graph([a, b]), Graph((a, b)), Graph(a, b)):
        assert graph.outputs == (a, b)
        assert graph.nodes == [a, b]
    assert len(Graph([])) == len(Graph()) == 0


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ((1.5,), "argument 0 is a float"),
        (([None],), "argument 0 is None"),
        ((np.zeros((2, 3)),), r"argument 0 is a numpy array \(float64, shape \(2, 3\)\)"),
        ((zeros("f32", (1,)), "x"), "argument 1 is a str"),
        ((zeros("f32", (1,)), [zeros("f32", (1,))]), "argument 1 is a list"),
    ],
)
def test_only_tensors_make_a_graph(given: Any, kind: str) -> None:
    with pytest.raises(ArgumentError, match=f"^Graph: {kind}: it must be a tensor$"):
        Graph(*given)
    with pytest.raises(ArgumentError, match=f"^compute: {kind}: it must be a tensor$"):
        compute(*given)


def ring(names: list[str]) -> list[Tensor]:
    """Nodes of which each is made of the one before it, and the first of the last."""
    nodes = [zeros("f32", (4,))]
    for name in names:
        nodes.append(ops.neg(nodes[-1]))
        nodes[-1].name = name
    nodes[1].src = (nodes[-1],)
    return nodes[1:]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["h"], "h from h"),
        (["a", "", "c"], "c from neg from a from c"),
        ([f"n{i}" for i in range(100)], "n99 from n98 from n97 from n96 from … from n3 from n2 "
                                        "from n1 from n0 from n99"),
    ],
)  # fmt: skip
def test_a_cycle_is_refused(names: list[str], told: str) -> None:
    nodes = ring(names)
    message = f"^Graph: {told}: a node must not be computed from its own result$"
    for outputs in ((nodes[-1],), (ops.scale(nodes[-1], 2.0),), (zeros("f32", (4,)), nodes[-1])):
        with pytest.raises(ArgumentError, match=message):
            Graph(*outputs)
    with pytest.raises(ArgumentError, match=r"^Graph: "):
        compute(nodes[0], backend="reference")


def test_a_node_that_many_read_is_no_cycle() -> None:
    x = zeros("f32", (4,))
    for _ in range(40):  # 2^40 ways from the result to the leaf
        x = ops.add(x, x)
    assert len(Graph(x, x, ops.mul(x, x.src[0]))) == 41


def test_a_chain_may_be_deeper_than_pythons_stack() -> None:
    x = y = from_numpy(np.ones(4, np.float32))
    neg = ops.neg(x).op
    for _ in range(100_000):
        y = Tensor(y.spec, op=neg, src=(y,))
    assert len(Graph(y)) == 100_000
    for _ in range(1200):
        x = ops.neg(x)
    np.testing.assert_array_equal(compute(x, backend="reference"), 1)


def test_json_dump_is_complete() -> None:
    dumped = json.loads(sample().to_json())
    norm, y = dumped["nodes"]
    assert norm["op"] == "rms_norm"
    assert norm["params"] == {"eps": 1e-5}
    assert norm["src"] == [["leaf", 1]]
    assert y["src"] == [["leaf", 0], ["node", 0]]
    assert y["ne"] == [4, 3, 1, 1]
    assert y["nb"] == [4, 16, 48, 48]
    assert dumped["outputs"] == [["node", 1]]
    assert dumped["leafs"][0]["flags"] == ["WEIGHT"]


def test_json_dump_says_where_views_lie() -> None:
    x = from_numpy(np.zeros((3, 32), np.float32))
    (view,) = json.loads(Graph(ops.view_1d(x, 8, 128)).to_json())["nodes"]
    assert view["view_src"] == ["leaf", 0]
    assert view["view_offs"] == 128


def test_dot_dump_is_well_formed() -> None:
    dot = sample().to_dot()
    assert dot.startswith("digraph")
    assert dot.endswith("}")
    assert dot.count("->") == 3
    assert r"quote \" \\ x" in dot
