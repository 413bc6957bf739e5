"""Delta nets: files that are refused, and names of nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.errors import GgmlpyError, Unsupported, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS

REFUSED: list[tuple[str, dict[str, Any], type[GgmlpyError], str]] = [
    ("qwen35", {"ssm.group_count": 4}, WeightError, "ssm.group_count. is 4.* divisor of 6"),
    ("qwen35", {"ssm.inner_size": 121}, WeightError, "ssm.inner_size. is 121.* 6 heads of 20"),
    ("qwen35", {"ssm.conv_kernel": 1}, WeightError, "ssm.conv_kernel. is 1.* at least 2"),
    ("qwen35", {"attention.value_length": 20}, WeightError, "value_length. is 20.* 24"),
    ("qwen3next", {"expert_count": 0, "expert_used_count": 0}, WeightError, "expert_count. is 0"),
    ("kimi-linear", {"ssm.conv_kernel": 1}, WeightError, "ssm.conv_kernel. is 1.* at least 2"),
    ("kimi-k3", {"kda.gate_lower_bound": 0.5}, WeightError, "gate_lower_bound. is 0.5.* below 0"),
    ("bailingmoe3", {"kda.safe_gate": False}, Unsupported, "decay has no bound"),
    (
        "glm5-next",
        {"attention.indexer.kpool_select_tail": False},
        Unsupported,
        "kpool_select_tail",
    ),
    ("qwen4exp", {"ple.layers": [2]}, WeightError, "ple.layers. is .*one layer that is a delta"),
    ("qwen4exp", {"ple.ngram_size": 1}, WeightError, "ple.ngram_size. is 1, must be at least 2"),
    ("qwen4exp", {"ple.ngram_size": 4}, WeightError, "layer_multipliers. is a list of 3"),
    (
        "qwen4exp",
        {"embedding_length_per_layer_input": 20},
        WeightError,
        "per_layer_input. is 20.* a share of 64 for each of 4 rows",
    ),
    ("qwen4exp", {"ple.head_offsets": [0, 2**31, 0, 0]}, WeightError, "with the offset"),
    ("qwen4exp", {"hyper_connection.count": 1}, WeightError, "hyper_connection.count. is 1"),
]


@pytest.mark.parametrize(("name", "keys", "error", "message"), REFUSED)
def test_refused(
    tmp_path: Path, name: str, keys: dict[str, Any], error: type[GgmlpyError], message: str
) -> None:
    spec = SPECS[name]
    with pytest.raises(error, match=message):
        write_seeded(tmp_path, name, replace(spec, keys={**spec.keys, **keys}))


@pytest.mark.parametrize("name", ["glm5-next", "qwen4exp"])
def test_contexts_that_need_an_indexer_are_refused(tmp_path: Path, name: str) -> None:
    spec = SPECS[name]
    keys = {**spec.keys, "attention.indexer.top_k": 64}
    model = load_model(GGUFFile.open(write_seeded(tmp_path, name, replace(spec, keys=keys))))
    Context(model, backends_for("null", 1), n_ctx=64)
    with pytest.raises(Unsupported, match="sparse attention"):
        Context(model, backends_for("null", 1), n_ctx=128)


@pytest.mark.parametrize("name", ["qwen35", "qwen3next", "qwen3next-older", "qwen4exp"])
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
def test_every_node_has_a_name_of_its_own(tmp_path: Path, name: str, flash_attn: bool) -> None:
    model = load_model(GGUFFile.open(write_seeded(tmp_path, name, SPECS[name])))
    run = Context(model, backends_for("null", 1), n_ctx=64, flash_attn=flash_attn)
    run.decode([1, 2, 3])
    counts = Counter(node.name for node in run.last_graph.nodes)
    assert [(name, n) for name, n in counts.items() if n > 1 or not name] == []
