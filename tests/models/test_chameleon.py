"""Chameleon: what llama.cpp's logits for the seeded model do not show."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import Model, load_model
from ggmlpy.models.architectures.chameleon import Chameleon
from ggmlpy.models.blocks.layers import SequentialLayer
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS

SPEC = SPECS["chameleon"]


def model(folder: Path, n_vocab: int, **keys: bool) -> Model:
    spec = dataclasses.replace(SPEC, n_vocab=n_vocab, keys={**SPEC.keys, **keys})
    spec = dataclasses.replace(spec, types=dict.fromkeys(keys, "bool"))
    return load_model(GGUFFile.open(write_seeded(folder, "chameleon", spec)))


@pytest.mark.parametrize("n_after", [0, 1, 9])
def test_no_output_chooses_a_token_of_an_image(tmp_path: Path, n_after: int) -> None:
    n_vocab = 8196 + n_after
    run = Context(model(tmp_path, n_vocab), backends_for("cpu"), n_ctx=16)
    logits = run.decode([1, 5000, 3], all_logits=True)
    lowest = logits == np.finfo(np.float32).min
    expected = np.zeros(n_vocab, bool)
    expected[4:8196] = True
    assert (lowest == expected).all()
    assert np.abs(logits[~lowest]).max() < 100


def test_the_vocabulary_must_have_the_tokens_of_images(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"vocab_size.* is 8195.* at least 8196"):
        model(tmp_path, 8195)


def test_the_larger_model_norms_results(tmp_path: Path) -> None:
    """norm(attention(x)) + x = h; norm(ffn(h)) + h."""
    loaded = model(tmp_path, 8196, swin_norm=True)
    assert isinstance(loaded, Chameleon)
    for layer in loaded.layers:
        assert isinstance(layer, SequentialLayer)
        norms = layer.attn_norm, layer.attn_post_norm, layer.ffn_norm, layer.ffn_post_norm
        names = [norm and norm.weight and norm.weight.name.split(".")[2] for norm in norms]
        assert names == [None, "attn_norm", None, "ffn_norm"]


def test_each_head_of_q_and_k_has_weights_of_its_own(tmp_path: Path) -> None:
    loaded = model(tmp_path, 8196)
    assert isinstance(loaded, Chameleon)
    norm = loaded.mixer(0).q_norm
    assert norm is not None
    assert norm.weight is not None
    assert norm.weight.ne[:2] == (16, 4)
