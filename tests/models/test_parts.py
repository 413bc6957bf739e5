"""RWKV, looped layers, and parts of larger systems: what llama.cpp's logits do not show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.seeded import N_VOCAB, Seeded, write_seeded
from tests.models.seeded_specs import SPECS

TOKENS = [5, 1, 40, 3, 3, 60]


def logits(folder: Path, name: str, spec: Seeded) -> NDArray[np.float32]:
    model = load_model(GGUFFile.open(write_seeded(folder, name, spec)))
    run = Context(model, backends_for("cpu", 1), n_ctx=32)
    return run.decode(TOKENS, all_logits=True).copy()


def test_tokens_without_a_row_in_the_map_are_impossible(tmp_path: Path) -> None:
    spec, n_rows = replace(SPECS["qwen3tts"], without=""), 50

    def of(n: int) -> NDArray[np.float32]:
        shapes = {**spec.shapes, r"output\.weight": (64, n)}
        return logits(tmp_path, f"{n}", replace(spec, shapes=shapes))

    all_rows, some = of(N_VOCAB), of(n_rows)
    assert some.shape == all_rows.shape
    assert np.all(some[:, : N_VOCAB - n_rows] == -np.inf)
    np.testing.assert_array_equal(some[:, N_VOCAB - n_rows :], all_rows[:, :n_rows])


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("rwkv6", "wkv.head_size", 24, "is 24, must be a divisor of 64, the embedding_length"),
        ("rwkv7", "token_shift_count", 1, "is 1, must be 2"),
        ("arwkv7", "token_shift_count", 2, "is 2, must be 1"),
        ("rwkv6qwen2", "attention.head_count_kv", 3, "is 3, must be a divisor of 4 heads"),
        ("hrm_text", "block_count", 15, "is 15, must be 16, the runs of layers, and at most 512"),
        ("hrm_text", "hrm.layers_per_stack", 9, "is 9, must be at most 8, the layers with tensors"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, key: str, value: int, message: str
) -> None:
    spec = SPECS[name]
    with pytest.raises(WeightError) as raised:
        write_seeded(tmp_path, "m", replace(spec, keys={**spec.keys, key: value}))
    assert f'key "{spec.architecture}.{key}" {message}' in str(raised.value)
