"""The qwen2 graph against a plain numpy forward pass, and against llama.cpp's logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.checks import (
    BACKENDS,
    FLASH,
    check_always_the_same,
    check_engine_sequences,
    check_many_sequences,
    check_plain_forward,
    check_reference,
)
from tests.models.tiny import Tiny

BASE = Tiny(architecture="qwen2", neox=True, biases=True)
VARIANTS = {
    "plain": BASE,
    "tied, no biases": replace(BASE, tied=True, biases=False),
    "output bias": replace(BASE, output_bias=True),
    "partly turned": replace(BASE, n_rot=8),
    "YaRN": replace(BASE, yarn_factor=4.0, freq_base=500.0),
    "scales": replace(BASE, scales=True),
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
    check_reference("qwen2", backend, flash_attn, 1e-6)
