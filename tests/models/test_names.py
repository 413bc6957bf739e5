"""Names in a model's graph are llama.cpp's, and each node has one of its own.

That nodes of all architectures have one of their own is checked where their graphs are run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmlpy import Graph
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.layers import layers_of
from ggmlpy.graph.types import F16
from ggmlpy.memory.batch import Batch
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.checks import repeated_names
from tests.models.tiny import Tiny, write_model

MODELS = {
    "llama": Tiny(),
    "experts": Tiny(n_expert=4, n_expert_used=2, scales=True),
    "qwen2": Tiny(architecture="qwen2", neox=True, biases=True),
    "qwen3": Tiny(architecture="qwen3", neox=True, qk_norm=True),
    "gemma3": Tiny(
        architecture="gemma3",
        n_layer=3,
        neox=True,
        qk_norm=True,
        post_norms=True,
        gelu=True,
        embedding_scale=8.0,
        window=5,
        windowed=(0, 2),
        softcap=30.0,
    ),
    "lfm2": Tiny(architecture="lfm2", n_layer=4, neox=True, qk_norm=True, convolutions=(0, 1, 3)),
}


# As llama.cpp's source names them: src/llama-graph.cpp and src/models/*.cpp.
BLOCK = {"attn_norm", "ffn_inp", "ffn_norm", "l_out"}
FEED_FORWARD = {"ffn_gate", "ffn_up", "ffn_swiglu", "ffn_out"}
MOE = ("logits", "probs", "topk", "weights", "weights_sum", "weights_norm", "gate", "up")
MOE_END = ("gate_scaled", "up_scaled", "swiglu", "down", "down_scaled", "weighted", "out")
ATTENTION = {"Qcur", "Kcur", "Vcur", "kq", "kq_soft_max", "v_cont", "kqv", "kqv_out", "attn_out"}
CONVOLUTION = {"conv.in_proj", "conv.conv", "conv.out_proj"}
NORMED = {"Qcur_normed", "Kcur_normed"}
QUERIES = {"qwen3": NORMED, "gemma3": NORMED, "lfm2": NORMED}
AROUND = {
    "experts": BLOCK | {f"ffn_moe_{part}" for part in MOE + MOE_END},
    "gemma3": {"attn_norm", "attn_post_norm", "sa_out", "ffn_norm", "ffn_gate", "ffn_up"}
    | {"ffn_geglu", "ffn_out", "ffn_post_norm", "l_out"},
}
NAMES = {
    "gemma3": {"inp_scaled", "attn_inp_kq_mask", "attn_inp_kq_mask_swa"},
    "llama": {"attn_inp_kq_mask"},
}


def graph_of(path: Path, lengths: dict[int, int], *, flash_attn: bool) -> Graph:
    """The graph of a ubatch with so many tokens of each sequence."""
    context = Context(
        load_model(GGUFFile.open(path)),
        backends_for("null"),
        n_ctx=256,
        n_seq_max=4,
        type_k=F16,
        type_v=F16,
        flash_attn=flash_attn,
    )
    batch = Batch()
    for seq, n in lengths.items():
        batch.add_sequence(seq, [1] * n, 0)
    context.decode_batch(batch)
    return context.last_graph


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("lengths", [{0: 1}, {0: 5, 1: 2, 2: 2, 3: 9}], ids=["one", "many"])
def test_every_node_has_a_name_of_its_own(
    tmp_path: Path, name: str, flash_attn: bool, lengths: dict[int, int]
) -> None:
    graph = graph_of(write_model(tmp_path / "m.gguf", MODELS[name]), lengths, flash_attn=flash_attn)
    assert repeated_names(graph) == []


@pytest.mark.parametrize("name", MODELS)
def test_names_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    graph = graph_of(write_model(tmp_path / "m.gguf", MODELS[name]), {0: 3}, flash_attn=False)
    own = MODELS[name]
    expected = {"inp_tokens", "inp_pos", "inp_out_ids", "inp_embd", "result_norm", "result_output"}
    expected |= NAMES.get(name, set())
    for i in range(own.n_layer):
        parts = CONVOLUTION if i in own.convolutions else ATTENTION | QUERIES.get(name, set())
        parts = parts | AROUND.get(name, BLOCK | FEED_FORWARD)
        expected |= {f"{part}-{i}" for part in parts}
        expected |= {f"cache_{kind}_l{i}" for kind in ("r" if i in own.convolutions else "kv")}
        expected |= {f"blk.{i}.{norm}.weight" for norm in ("attn_norm", "ffn_norm")}
    assert expected - {t.name for t in (*graph.leafs, *graph.nodes)} == set()


@pytest.mark.parametrize("name", MODELS)
def test_every_node_between_embedding_and_norm_is_of_a_layer(tmp_path: Path, name: str) -> None:
    graph = graph_of(write_model(tmp_path / "m.gguf", MODELS[name]), {0: 3, 1: 5}, flash_attn=True)
    layers = layers_of(graph)
    outside = [graph.name_of(t) for t in graph.nodes if layers[t] is None]
    ends = ("inp_", "result_", "output", "softcap.")
    assert [name for name in outside if not name.startswith(ends)] == []
    assert {layers[t] for t in graph.nodes} == {None, *range(MODELS[name].n_layer)}
