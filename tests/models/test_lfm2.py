"""The lfm2 graph against a plain numpy forward pass, and against llama.cpp's logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.models import SHAPES
from benchmarks.models import write_model as write_random_model
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.types import BY_ID
from ggmlpy.models import load_model
from ggmlpy.models.memory import AttentionLayers, KVSizes, RecurrentLayers
from tests.models.by_hand import ByHand, Group, alone
from tests.models.checks import (
    BACKENDS,
    FLASH,
    TOKENS,
    check_always_the_same,
    check_engine_sequences,
    check_many_sequences,
    check_plain_forward,
    check_reference,
    context,
    nmse,
)
from tests.models.tiny import Tiny, forward, write_model

BASE = Tiny(architecture="lfm2", n_layer=4, neox=True, qk_norm=True, convolutions=(0, 1, 3))
VARIANTS = {
    "plain": BASE,
    "tied": replace(BASE, tied=True),
    "attention last": replace(BASE, convolutions=(0, 2)),
    "two taps": replace(BASE, n_taps=2),
    "five taps": replace(BASE, n_taps=5),
    "a window": replace(BASE, window=5, windowed=(2,)),
    "scales and biases": replace(BASE, scales=True, biases=True),
}


@FLASH
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_a_plain_forward_pass(
    tmp_path: Path, variant: str, backend: str, flash_attn: bool
) -> None:
    check_plain_forward(tmp_path / "tiny.gguf", VARIANTS[variant], backend, flash_attn)


@FLASH
@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_do_not_see_each_other(tmp_path: Path, backend: str, flash_attn: bool) -> None:
    check_many_sequences(tmp_path / "tiny.gguf", BASE, backend, flash_attn)


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
def test_the_engine_keeps_sequences_apart(tmp_path: Path, unified: bool) -> None:
    check_engine_sequences(tmp_path / "tiny.gguf", BASE, unified)


@FLASH
def test_logits_are_always_the_same(tmp_path: Path, flash_attn: bool) -> None:
    check_always_the_same(tmp_path / "tiny.gguf", BASE, flash_attn)


@FLASH
@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_are_llama_cpps(backend: str, flash_attn: bool) -> None:
    check_reference("lfm2", backend, flash_attn, 1e-6)


@pytest.mark.parametrize("n_ubatch", [512, 1])
@pytest.mark.parametrize("file_type", ["q8_0", "q4_0", "q4_K", "q6_K", "q4_K_M"])
def test_quantised_files_lose_what_int8_activations_lose(
    tmp_path: Path, file_type: str, n_ubatch: int
) -> None:
    """All that keeps the logits from exact ones is the rounding of activations, in blocks of 32.

    ggml rounds them in blocks of 256 for K-quants, and is three times as far from exact there:
    where two tokens are nearly as likely, its first may be another.
    """
    shape = replace(
        SHAPES["LFM2-1.2B"], n_layer=3, n_embd=256, n_head=4, n_head_kv=2, n_ff=512, n_vocab=300,
        n_ctx=128, attention_layers=(1,),
    )  # fmt: skip
    sizes = replace(
        BASE, n_layer=3, n_embd=256, n_head=4, n_head_kv=2, n_ff=512, n_vocab=300,
        n_rot=64, convolutions=(0, 2), tied=True, freq_base=shape.freq_base,
    )  # fmt: skip
    path = tmp_path / "m.gguf"
    write_random_model(path, "LFM2", shape, file_type)
    got = context(path, "cpu", n_ubatch=n_ubatch).decode(TOKENS, all_logits=True)
    stored = stored_weights(path)
    rounded = forward(sizes, TOKENS, int8_activations=True, stored=stored)
    # An activation between two int8, but for the last bits of an f32, may go to either: of
    # 60,000 about one does. Its token, and those that see it, differ by a tenth of what rounding
    # loses at most; all others by the rounding of f32.
    of_tokens = [nmse(x, y) for x, y in zip(got, rounded, strict=True)]
    assert np.median(of_tokens) < 1e-8
    assert nmse(got, rounded) < 1e-4
    assert 3e-4 < nmse(got, forward(sizes, TOKENS, stored=stored)) < 2e-3


def stored_weights(path: Path) -> dict[str, NDArray[np.float64]]:
    """Every tensor of a file, in numpy order."""
    tensors = gguf.GGUFReader(path).tensors
    return {
        t.name: to_float(t.data.view(np.uint8), BY_ID[int(t.tensor_type)]).astype(np.float64)
        for t in tensors
    }


def test_layers_are_grouped_by_what_they_remember(tmp_path: Path) -> None:
    attention, recurrent = load_model(GGUFFile.open(write_model(tmp_path / "a.gguf", BASE))).memory
    assert isinstance(attention, AttentionLayers)
    assert isinstance(recurrent, RecurrentLayers)
    assert (attention.layers, attention.window) == ({2: KVSizes(16, 16, 2)}, None)
    assert (recurrent.states, recurrent.n_taps) == (dict.fromkeys((0, 1, 3), (2 * 64,)), 3)


def test_a_file_without_convolutions(tmp_path: Path) -> None:
    """One number of K/V heads for all layers: attention in each of them."""
    model = replace(BASE, convolutions=())
    path = write_model(tmp_path / "tiny.gguf", model, lfm2__shortconv__l_cache=3)
    loaded = load_model(GGUFFile.open(path))
    assert len(loaded.memory) == 1
    got = ByHand(loaded).run(alone(TOKENS))
    assert nmse(got, forward(model, TOKENS)) < 1e-10


def test_states_of_waiting_sequences_stay(tmp_path: Path) -> None:
    """A ubatch of some sequences leaves the others' states as they were."""
    loaded = load_model(GGUFFile.open(write_model(tmp_path / "tiny.gguf", BASE)))
    run = ByHand(loaded, n_seqs=3)
    run.run([Group(0, [TOKENS[:6], TOKENS[2:8], TOKENS[4:10]])])
    run.run([Group(2, [[7, 8, 9]])])
    got = run.run([Group(0, [TOKENS[6:8], TOKENS[8:10]])])
    want = [forward(BASE, TOKENS[:8])[6:], forward(BASE, TOKENS[2:10])[6:]]
    assert nmse(got, np.concatenate(want)) < 1e-10


CONTRADICTIONS: list[tuple[dict[str, object], str]] = [
    ({"lfm2__shortconv__l_cache": None}, '"lfm2.shortconv.l_cache" is missing'),
    ({"lfm2__shortconv__l_cache": 1}, '"lfm2.shortconv.l_cache" is 1, must be at least 2'),
    ({"lfm2__shortconv__l_cache": 4}, r'"blk.0.shortconv.conv.weight" is \[3, 64\].*\[4, 64\]'),
    (
        {"lfm2__attention__head_count_kv": [0, 0, 2]},
        "is a list of 3, must be one of 4, the block_count",
    ),
    ({"lfm2__attention__head_count_kv": [0, 1, 2, 0]}, '"blk.1.attn_q.weight" .* is missing'),
    ({"lfm2__attention__head_count_kv": [0] * 4}, '"blk.2.shortconv.in_proj.weight" .* is missing'),
    ({"lfm2__attention__head_count_kv": [0, 0, -2, 0]}, "is -2, must be at least 0"),
    ({"lfm2__attention__head_count_kv": [2, 0, 2, 0]}, '"blk.0.attn_q.weight" .* is missing'),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS)
def test_files_that_contradict_themselves(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = write_model(tmp_path / "bad.gguf", BASE, **changes)
    with pytest.raises(WeightError, match=message) as caught:
        load_model(GGUFFile.open(path))
    assert str(caught.value).startswith("bad.gguf: ")
