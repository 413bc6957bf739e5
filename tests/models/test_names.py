"""Names in a model's graph: each node has one of its own, and those that people look for exist."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ggmlpy import Graph
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F16
from ggmlpy.memory.batch import Batch
from ggmlpy.models import ARCHITECTURES, load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
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
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "unfused"])
@pytest.mark.parametrize("lengths", [{0: 1}, {0: 5, 1: 2, 2: 2, 3: 9}], ids=["one", "many"])
def test_every_node_has_a_name_of_its_own(
    tmp_path: Path, name: str, flash_attn: bool, lengths: dict[int, int]
) -> None:
    graph = graph_of(write_model(tmp_path / "m.gguf", MODELS[name]), lengths, flash_attn=flash_attn)
    counts = Counter(t.name for t in (*graph.leafs, *graph.nodes))
    assert [(name, n) for name, n in counts.items() if n > 1 or not name] == []


@pytest.mark.parametrize("name", MODELS)
def test_names_that_people_look_for(tmp_path: Path, name: str) -> None:
    graph = graph_of(write_model(tmp_path / "m.gguf", MODELS[name]), {0: 3}, flash_attn=True)
    layer = MODELS[name].n_layer - 1
    names = {t.name for t in graph.nodes}
    assert {"inp_embd", f"blk.{layer}.l_out", "result_norm", "result_output"} <= names
    attention = next(t.name[: -len(".attn.k")] for t in graph.nodes if t.name.endswith(".attn.k"))
    wanted = ("Qcur", "Qcur_turned", "Kcur_turned", "Vcur", "k_stored", "v_stored", "kqv_out")
    assert {f"{attention}.{end}" for end in (*wanted, "attn.q", "attn.v")} <= names


def test_every_architecture_is_asked() -> None:
    assert {m.architecture for m in MODELS.values()} == set(ARCHITECTURES)
