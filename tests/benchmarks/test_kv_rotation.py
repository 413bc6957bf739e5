"""benchmarks/kv_rotation.py: the models that it writes are the packaged one, and what it finds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.kv_rotation import VARIANTS, Score, logits_of, main, measure, texts, write_variant
from ggmlpy import packaged_model
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from tests.models.checks import nmse

BY_NAME = {variant.name: variant for variant in VARIANTS}
PROMPTS = [tokens[:90] for tokens in texts(1)]


def logits(path: Path) -> NDArray[np.float32]:
    return next(logits_of(load_model(GGUFFile.open(path)), "f32", None, PROMPTS))


def test_the_models_compute_what_the_packaged_one_does(tmp_path: Path) -> None:
    found = {}
    for name, variant in BY_NAME.items():
        write_variant(tmp_path / f"{name}.gguf", variant)
        found[name] = logits(tmp_path / f"{name}.gguf")
    want = found.pop("heads-32")
    assert nmse(want, logits(packaged_model())) < 1e-3  # that one rounds x to 8 bits
    for got in found.values():
        assert nmse(got, want) < 1e-8


def test_outliers_cost_less_where_k_is_rotated(tmp_path: Path) -> None:
    write_variant(tmp_path / "model.gguf", BY_NAME["heads-64-outliers"])
    found = {type: scores for type, *scores in measure(tmp_path / "model.gguf", PROMPTS)}
    assert found["f32"][0].error == found["f32"][1].error == 0
    for type in ("q8_0", "q4_0"):
        plain, rotated = found[type]
        assert rotated.error < plain.error / 2


def test_the_score_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(3)
    exact = rng.normal(size=(4, 5)).astype(np.float32)
    logits, tokens = exact + np.float32(0.1), [1, 4, 0, 2]
    score = Score()
    score.add(logits, exact, tokens)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.mean([np.log(p[i, token]) for i, token in enumerate(tokens[1:])])
    assert str(score) == f"{0.01 * 20 / (exact.astype(float) ** 2).sum():.1e}, {np.exp(loss):.4f}"


def test_the_table_and_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "kv_rotation.json"
    monkeypatch.setattr("benchmarks.kv_rotation.VARIANTS", VARIANTS[1:2])
    monkeypatch.setattr("benchmarks.kv_rotation.TYPES", ("q8_0",))
    monkeypatch.setattr("benchmarks.kv_rotation.RESULTS", results)
    assert main(["--stories", "1"]) == 0
    assert not results.exists()
    printed = capsys.readouterr().out
    assert main(["--stories", "1", "--save"]) == 0
    assert capsys.readouterr().out == printed
    first, *_, f32, q8_0 = printed.splitlines()
    assert first.endswith("tokens: NMSE of the logits, perplexity")
    ((name, entry),) = json.loads(results.read_text()).items()
    assert name == "heads-64"
    assert first.startswith(f"{entry['tokens']} tokens")
    for line, type in ((f32, "f32"), (q8_0, "q8_0")):
        shown = (
            f"{entry['scores'][type][kind]['nmse']:.1e},"
            f" {entry['scores'][type][kind]['perplexity']:.4f}"
            for kind in ("plain", "rotated")
        )
        assert line == f"| {name} | {type} | {' | '.join(shown)} |"
