from __future__ import annotations

import json

import numpy as np
import pytest

from ggmlpy import ops
from ggmlpy.graph import Graph
from ggmlpy.tensor import Flag, from_bytes, from_numpy, scope, zeros


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


def test_a_deep_graph_needs_no_deep_stack() -> None:
    x = from_numpy(np.zeros(4, np.float32))
    y = x
    for _ in range(20_000):
        y = ops.neg(y)
    assert len(Graph(y)) == 20_000


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
    assert "rms_norm(eps=1e-05) of quote" in text
    assert "y" in text
    assert "mul_mat of w, node_0" in text


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
