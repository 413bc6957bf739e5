"""A graph cut down to some layers computes what those layers compute in the whole graph."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy import Graph, Tensor, compute, from_numpy, ops, scope
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.buffer import HostBuffer, Place, aligned_bytes
from ggmlpy.graph.layer_range import layer_range
from ggmlpy.graph.layers import layers_of


def three_layers() -> Graph:
    """Layers with views of values from outside, of views, and of a cache that is written."""
    rng = np.random.default_rng(5)

    def leaf(name: str, *shape: int) -> Tensor:
        return from_numpy(rng.standard_normal(shape).astype(np.float32), name=name)

    rows = from_numpy(np.array([2, 0, 1], np.int64), name="rows")
    x = leaf("x", 3, 8)
    outside = ops.view_2d(x, 4, 3, x.nb[1], 16)  # [4, 3]: the second half of every row
    for i in range(3):
        w, cache = leaf(f"blk.{i}.w", 8, 8), leaf(f"cache_k_l{i}", 4, 8)
        with scope(layer=i):
            h = ops.mul_mat(w, x)  # [8, 3]
            kept = ops.set_rows(cache, h, rows)  # [8, 4]
            half = ops.view_2d(kept, 4, 3, kept.nb[1], 16)  # [4, 3]
            part = ops.view_2d(ops.reshape_2d(half.cont(), 12, 1), 12, 1, 48, 0)  # of a view
            shifted = ops.add(ops.reshape_2d(part, 4, 3), outside)  # [4, 3]
            x = ops.concat(shifted, shifted, 0).named("l_out")  # [8, 3]
    return Graph(ops.scale(x, 2.0))


def test_layers_of_names_views_and_leafs() -> None:
    graph = three_layers()
    layers = layers_of(graph)
    by_name = {graph.name_of(t): layer for t, layer in layers.items()}
    assert by_name["blk.1.w"] == by_name["cache_k_l1"] == by_name["l_out-1"] == 1
    assert by_name["x"] is by_name["rows"] is None
    assert by_name["x (view)"] == 0  # goes with its first reader
    assert layers[graph.outputs[0]] is None


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 2), (1, 3), (0, 3)])
def test_a_part_computes_what_it_does_in_the_whole(start: int, stop: int) -> None:
    whole = three_layers()
    part = layer_range(whole, start, stop)
    assert {t for t in part.nodes}.isdisjoint(whole.nodes)
    by_name = {whole.name_of(t): t for t in (*whole.leafs, *whole.nodes)}
    for leaf in part.leafs:
        if leaf.place is None:  # a node of the whole graph
            leaf.place = Place(HostBuffer(aligned_bytes(leaf.spec.n_bytes)))
            values = compute(by_name[leaf.name], backend="reference")
            element_view(leaf.place.host_bytes, leaf.spec, 0)[...] = values
    (output,) = part.outputs
    assert output.name == f"l_out-{stop - 1}"
    expected = compute(three_layers().find(output.name), backend="reference")
    assert np.array_equal(compute(output, backend="reference"), expected)


def test_the_whole_graph_is_left_as_it_was() -> None:
    whole = three_layers()
    before = str(whole)
    layer_range(whole, 1, 2)
    assert str(whole) == before
    assert len(layer_range(whole, 5, 9)) == 0
