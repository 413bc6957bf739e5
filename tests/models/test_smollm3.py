"""SmolLM3 against a plain forward pass in numpy: rotation in three layers of four.

An example of such a pass for a specification, which architectures need that llama.cpp does not
have: see CONTRIBUTING.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from tests.models.checks import BACKENDS, FLASH, nmse, repeated_names
from tests.models.plain import F64, attention, rms_norm, rotated, sigmoid, tensors_of
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.test_architectures import TOKENS, context, in_turn

NAME = "smollm3"


def forward(path: Path, tokens: list[int]) -> F64:
    """Logits [n_tokens, n_vocab] of a file of the specification."""
    w, keys = tensors_of(path), SPECS[NAME].keys
    n_head, n_head_kv = keys["attention.head_count"], keys["attention.head_count_kv"]
    n_embd_head = keys["embedding_length"] // n_head
    eps = keys["attention.layer_norm_rms_epsilon"]
    x = w["token_embd.weight"][tokens]
    for i in range(keys["block_count"]):
        of = {name.removeprefix(f"blk.{i}."): values for name, values in w.items()}
        h = rms_norm(x, of["attn_norm.weight"], eps)
        q, k, v = (
            (h @ of[f"attn_{name}.weight"].T).reshape(len(x), n, n_embd_head)
            for name, n in (("q", n_head), ("k", n_head_kv), ("v", n_head_kv))
        )
        if (i + 1) % 4:
            q, k = (rotated(part, n_embd_head, neox=False) for part in (q, k))
        x = x + attention(q, k, v, n_embd_head**-0.5) @ of["attn_output.weight"].T
        h = rms_norm(x, of["ffn_norm.weight"], eps)
        gate = h @ of["ffn_gate.weight"].T
        x = x + (gate * sigmoid(gate) * (h @ of["ffn_up.weight"].T)) @ of["ffn_down.weight"].T
    logits: F64 = rms_norm(x, w["output_norm.weight"], eps) @ w["output.weight"].T
    return logits


@pytest.mark.parametrize("backend", BACKENDS)
@FLASH
def test_logits_are_those_of_a_plain_forward_pass(
    tmp_path: Path, backend: str, flash_attn: bool
) -> None:
    path = write_seeded(tmp_path, NAME, SPECS[NAME])
    run = context(load_model(GGUFFile.open(path)), backend, flash_attn=flash_attn)
    got = in_turn(run)
    assert repeated_names(run.last_graph) == []
    assert nmse(got, forward(path, TOKENS)) < 1e-12
