"""Every architecture's tiny model wholly on the emulated device: llama.cpp's logits, and the bits
that a sequence has alone, of recurrent models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peer_logits import N_PROMPT
from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.memory.batch import Batch
from tests.models.checks import nmse
from tests.models.seeded import KEPT_ROWS
from tests.models.seeded_specs import SPECS
from tests.models.test_architectures import (
    KEPT,
    N_OF_PROMPT,
    RESULTS,
    SHALLOW,
    TOKENS,
    context,
    in_turn,
    loaded,
)

pytestmark = [
    pytest.mark.placed,
    pytest.mark.skipif(available() is not None, reason=str(available())),
]

# One for each scan, and one that has a convolution only.
RECURRENT = ("kimi-linear", "lfm2", "mamba", "mamba2", "minimax-01", "qwen3next", "rwkv6", "rwkv7")


def device(name: str) -> list[Backend]:
    """The device alone: what it does not support is an error."""
    on_device: list[Backend] = [CudaBackend(EmulatedDriver())]
    # Its hash of n-grams is a function of Python.
    return [*on_device, get_backend("reference", 1)] if name == "qwen4exp" else on_device


@pytest.mark.parametrize("name", [name for name in SHALLOW if name in RESULTS])
def test_logits_are_llama_cpps(tmp_path: Path, name: str) -> None:
    model, want = loaded(tmp_path, name), KEPT[RESULTS[name]]
    rows = list(KEPT_ROWS)[: len(want) if model.hparams.is_causal else N_OF_PROMPT]
    got = in_turn(context(model, device(name), n_ubatch=64))[rows]
    if SPECS[name].has_gelu:  # which llama.cpp has as a table of f16; the CPU has it exact
        exact = in_turn(context(loaded(tmp_path, name), n_ubatch=64))[rows]
        assert nmse(got, exact) < 1e-6
    else:
        assert nmse(got, want[: len(rows)]) < 1e-9


@pytest.mark.parametrize("name", RECURRENT)
def test_a_sequence_has_the_bits_that_it_has_alone(tmp_path: Path, name: str) -> None:
    """In ubatches with other sequences, and in parts of other lengths."""
    model, backends = loaded(tmp_path, name), device(name)
    want = in_turn(context(model, backends, n_ubatch=7))
    among = context(
        model, backends, n_ctx=4 * 64, n_ctx_seq=64, n_seq_max=4, n_ubatch=48, kv_layout="unified"
    )
    lengths = [3, N_PROMPT, 1, 9]
    prompts = Batch()
    for seq, n in enumerate(lengths):
        prompts.add_sequence(seq, TOKENS[:n] if seq == 1 else TOKENS[-n:], 0, all_outputs=True)
    rows = slice(lengths[0], lengths[0] + N_PROMPT)
    np.testing.assert_array_equal(among.decode_batch(prompts)[rows], want[:N_PROMPT])
    for i, token in enumerate(TOKENS[N_PROMPT:]):  # from the third one on by a captured graph
        step = Batch()
        for seq, n in enumerate(lengths[: 2 + i % 2]):
            past = n + i if seq < 2 else n + i // 2
            step.add_sequence(seq, [token if seq == 1 else 7], past, all_outputs=True)
        np.testing.assert_array_equal(among.decode_batch(step)[1], want[N_PROMPT + i])
