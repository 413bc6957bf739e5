"""The graph of the last ubatch stays what it was, whatever is decoded after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggmlpy import ArgumentError, Context, compute
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import LAYOUTS
from tests.models.tiny import Tiny, write_model

MODELS = {
    "full": Tiny(),
    "window": Tiny("gemma3", window=4, windowed=(0,), qk_norm=True, post_norms=True, neox=True),
    "recurrent": Tiny("lfm2", convolutions=(0,), qk_norm=True, neox=True),
}


def dumped(graph: Graph) -> tuple[str, dict[str, bytes]]:
    """A graph with the values of its inputs."""
    inputs = [leaf for leaf in graph.leafs if Flag.INPUT in leaf.flags]
    return graph.to_json(), {leaf.name: leaf.array().tobytes() for leaf in inputs}


def two(context: Context, n: int) -> Batch:
    """A batch of `n` more tokens of each of two sequences."""
    batch = Batch()
    for seq in (0, 1):
        batch.extend(seq, [7 + seq + i for i in range(n)], context.n_past(seq))
    return batch


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_later_steps_leave_it_alone(
    tmp_path: Path, name: str, layout: str, flash_attn: bool
) -> None:
    path = write_model(tmp_path / "m.gguf", MODELS[name])
    context = Context.open(
        path, backend="cpu", n_threads=1, n_ctx=128, n_seq_max=2, kv_layout=layout,
        flash_attn=flash_attn,
    )  # fmt: skip
    for lengths in ([5], [1, 1], [3]):  # a prompt, a steady decode step, more tokens
        for n in lengths:
            logits = context.decode_batch(two(context, n)).copy()
        graph = context.last_graph
        before = dumped(graph)
        assert {"inp_tokens", "inp_pos", "inp_out_ids"} < set(before[1])
        assert graph.find("inp_tokens").array().ravel().tolist() == two(context, lengths[-1]).tokens
        assert context.last_graph is graph
        again = compute(graph.nodes[-1], backend=context.backends[0])
        np.testing.assert_array_equal(again, logits)
        context.decode_batch(two(context, 1))
        context.decode_batch(two(context, 2))
        assert dumped(graph) == before
        assert context.last_graph is not graph
        if name == "full":  # the cells that it sees hold what they held
            again = compute(graph.nodes[-1], backend=context.backends[0])
            np.testing.assert_array_equal(again, logits)
    last = context.last_graph
    before = dumped(last)
    context.seq_rm(-1)
    context.decode_batch(two(context, 4))
    assert dumped(last) == before


def test_there_is_none_before_the_first_batch(tmp_path: Path) -> None:
    context = Context.open(write_model(tmp_path / "m.gguf", Tiny()), backend="null", n_ctx=16)
    with pytest.raises(ArgumentError, match="last_graph: nothing was decoded yet"):
        _ = context.last_graph
