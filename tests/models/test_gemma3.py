"""The gemma3 graph against a plain numpy forward pass, and against llama.cpp's logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F32
from ggmlpy.models import load_model
from ggmlpy.models.memory import AttentionLayers, Window
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.by_hand import ByHand, alone
from tests.models.checks import (
    BACKENDS,
    FLASH,
    TOKENS,
    check_always_the_same,
    check_engine_sequences,
    check_many_sequences,
    check_plain_forward,
    check_reference,
    nmse,
)
from tests.models.tiny import Tiny, forward, write_model

BASE = Tiny(
    architecture="gemma3",
    n_layer=3,
    neox=True,
    qk_norm=True,
    post_norms=True,
    gelu=True,
    embedding_scale=8.0,  # the root of n_embd
    window=5,
    windowed=(0, 2),
    freq_base=50_000.0,
    freq_base_swa=800.0,
)
VARIANTS = {
    "plain": BASE,
    "tied": replace(BASE, tied=True),
    "large heads": replace(BASE, head_size=24, n_rot=24),
    "all windowed": replace(BASE, windowed=(0, 1, 2)),
    "none windowed": replace(BASE, windowed=()),
    "no window": replace(BASE, window=0, windowed=()),
    "softcap": replace(BASE, softcap=2.5),
    "linear scaling": replace(BASE, linear_factor=8.0),
    "YaRN": replace(BASE, yarn_factor=4.0, freq_base=500.0),
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
    check_reference("gemma3", backend, flash_attn, 1e-6)


@pytest.mark.parametrize(
    ("pattern", "windowed"),
    [(None, (0, 1, 2, 3, 4, 6)), (3, (0, 1, 3, 4, 6)), (2, (0, 2, 4, 6)), (1, ())],
)
def test_windows_by_a_period(
    tmp_path: Path, pattern: int | None, windowed: tuple[int, ...]
) -> None:
    model = replace(BASE, n_layer=7, windowed=windowed)
    changes = {"gemma3__attention__sliding_window_pattern": pattern}
    path = write_model(tmp_path / "tiny.gguf", model, **changes)
    got = ByHand(load_model(GGUFFile.open(path))).run(alone(TOKENS))
    assert nmse(got, forward(model, TOKENS)) < 1e-10


def test_windows_by_a_list_of_bools(tmp_path: Path) -> None:
    changes = {"gemma3__attention__sliding_window_pattern": [True, False, True]}
    path = write_model(tmp_path / "tiny.gguf", BASE, **changes)
    got = ByHand(load_model(GGUFFile.open(path))).run(alone(TOKENS))
    assert nmse(got, forward(BASE, TOKENS)) < 1e-10


def test_the_base_of_windowed_layers_has_a_default(tmp_path: Path) -> None:
    model = replace(BASE, freq_base_swa=10_000.0)
    path = write_model(tmp_path / "tiny.gguf", model, gemma3__rope__freq_base_swa=None)
    got = ByHand(load_model(GGUFFile.open(path))).run(alone(TOKENS))
    assert nmse(got, forward(model, TOKENS)) < 1e-10


def test_the_27b_size_scales_attention_by_its_width(tmp_path: Path) -> None:
    """62 layers say so: 1 / sqrt(n_embd / n_head) though a head has another size."""
    model = replace(
        BASE,
        n_layer=62,
        n_embd=16,
        n_head=2,
        n_head_kv=1,
        head_size=24,
        n_rot=24,
        n_ff=16,
        embedding_scale=4.0,
        attention_scale=8**-0.5,
    )
    path = write_model(tmp_path / "tiny.gguf", model)
    got = ByHand(load_model(GGUFFile.open(path))).run(alone(TOKENS))
    assert nmse(got, forward(model, TOKENS)) < 1e-8


def test_windowed_layers_reuse_their_cells(tmp_path: Path) -> None:
    """A text several times longer than the cache of a window, in the engine."""
    model = replace(BASE, n_ctx=1024)
    tokens = np.random.default_rng(5).integers(3, 288, 700).tolist()
    run = Context(
        load_model(GGUFFile.open(write_model(tmp_path / "tiny.gguf", model))),
        backends_for("cpu", 2),
        n_ctx=1024,
        n_ubatch=50,
        type_k=F32,
        type_v=F32,
    )
    full, near = run.memory.caches
    assert (full.cells.kv_size, near.cells.kv_size) == (1024, 256)
    assert nmse(run.decode(tokens, all_logits=True), forward(model, tokens)) < 1e-10


def test_layers_are_grouped_by_what_they_remember(tmp_path: Path) -> None:
    full, near = load_model(GGUFFile.open(write_model(tmp_path / "tiny.gguf", BASE))).memory
    assert isinstance(full, AttentionLayers)
    assert isinstance(near, AttentionLayers)
    assert (tuple(full.layers), full.window) == ((1,), None)
    assert (tuple(near.layers), near.window) == ((0, 2), Window(5))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ([1, 0], "is a list of 2, must be one of 3, the block_count"),
        ("every sixth", "has type str"),
    ],
)
def test_patterns_that_say_nothing(tmp_path: Path, pattern: object, message: str) -> None:
    changes = {"gemma3__attention__sliding_window_pattern": pattern}
    path = write_model(tmp_path / "bad.gguf", BASE, **changes)
    with pytest.raises(WeightError, match=message) as caught:
        load_model(GGUFFile.open(path))
    assert str(caught.value).startswith('bad.gguf: key "gemma3.attention.sliding_window_pattern"')
