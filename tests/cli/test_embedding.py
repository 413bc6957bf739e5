"""`ggmlpy embedding`, against `Llama.embed` and the forms that llama-embedding writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import Llama, packaged_model
from ggmlpy.cli.embedding import similarities
from ggmlpy.engine.embeddings import scaled
from ggmlpy.quantize import Choices, quantize_model
from tests.cli.conftest import Run
from tests.engine.test_embeddings import with_words
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS

TEXTS = ["A cat sleeps in the sun.", "A dog", "The sea is deep"]
GIVEN = ("--pooling", "mean", "-t", 2, "-p", "\n".join(TEXTS))


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    with Llama(packaged_model()) as llm:
        return np.stack(llm.embed(TEXTS, pooling="mean", normalize=False)).astype(np.float64)


def unit(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = x / np.sqrt((x * x).sum(axis=1, keepdims=True))
    return found


def test_texts_and_how_similar_they_are(run: Run, vectors: np.ndarray) -> None:
    lines = run("embedding", *GIVEN).out.splitlines()
    exact = unit(vectors)
    for i, row in enumerate(exact):
        label, numbers = lines[i].split(": ")
        assert label == f"embedding {i}"
        np.testing.assert_allclose([float(n) for n in numbers.split()], row[:16], atol=6e-7)
    assert lines[4] == "cosine similarity matrix:"
    assert lines[6] == "A cat   A dog The se"
    for line, row, text in zip(lines[7:], exact @ exact.T, TEXTS, strict=True):
        assert line == " ".join(f"{value:6.2f}" for value in row) + f" {text[:10]}"
    one = run("embedding", "--pooling", "mean", "-t", 2, "-p", TEXTS[1]).out.splitlines()
    assert len(one) == 1
    assert len(one[0].split()) == 2 + vectors.shape[1]


def test_forms_for_programs(run: Run, vectors: np.ndarray) -> None:
    def out(form: str, *more: Any) -> str:
        return run("embedding", *GIVEN, "--embd-output-format", form, *more).out

    exact = unit(vectors)
    np.testing.assert_allclose(json.loads(out("array")), exact, atol=6e-8)
    found = json.loads(out("json"))
    assert found["object"] == "list"
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    assert {each["object"] for each in found["data"]} == {"embedding"}
    np.testing.assert_allclose([each["embedding"] for each in found["data"]], exact, atol=6e-8)
    more = json.loads(out("json+"))
    assert more.pop("cosineSimilarity") == np.round(exact @ exact.T, 2).tolist()
    assert more == found
    rows = [line.split() for line in out("raw", "--embd-normalize", 0).splitlines()]
    want = vectors / np.abs(vectors).max(axis=1, keepdims=True) * 32760
    np.testing.assert_allclose(np.array(rows, float), want, atol=0.6)
    assert all("." not in number for row in rows for number in row)


@pytest.mark.parametrize("kind", [-1, 0, 1, 2, 3, 7])
def test_norms(kind: int) -> None:
    x = np.random.default_rng(kind + 1).normal(0, 4, (3, 29)).astype(np.float32)
    x[1] = 0
    found = scaled(x, kind)
    assert found.dtype == np.float32
    if kind == -1:
        np.testing.assert_array_equal(found, x)
        return
    order = np.inf if kind == 0 else kind
    norms = np.linalg.norm(found.astype(np.float64), order, axis=1)
    assert norms == pytest.approx([32760 if kind == 0 else 1, 0, 32760 if kind == 0 else 1])
    with np.errstate(invalid="ignore"):
        assert np.nanstd(found[0] / x[0]) < 1e-6 * abs(found[0] / x[0]).mean()


def test_embeddings_of_tokens_and_other_separators(run: Run) -> None:
    given = ("--pooling", "none", "-t", 2, "-p", "A cat;A dog", "--embd-separator", ";")
    with Llama(packaged_model()) as llm:
        tokens = np.concatenate(llm.embed(["A cat", "A dog"], pooling="none"))
    lines = run("embedding", *given).out.splitlines()
    assert len(lines) == len(tokens)
    numbers = lines[3].removeprefix("embedding 3: ").split()
    want = [*tokens[3][:3], *tokens[3][-3:]]
    assert [float(n) for n in numbers if n != "..."] == pytest.approx(want, abs=6e-7)


PEER = json.loads(
    Path(__file__).with_name("peer_embeddings.json").read_text(encoding="utf-8")
)  # tests/tools/record_embeddings.py made it


@pytest.fixture(scope="module")
def f32_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged model with the same weights in f32, in which llama.cpp computes the same."""
    path = tmp_path_factory.mktemp("f32") / "stories-f32.gguf"
    quantize_model(packaged_model(), path, "F32", Choices(allow_requantize=True))
    return path


@pytest.mark.parametrize("case", PEER["cases"], ids=lambda case: f"{case[0]} {case[1]}")
def test_numbers_are_llama_embeddings(run: Run, f32_model: Path, case: list[Any]) -> None:
    pooling, norm, rows = case
    given = ("-m", f32_model, "-t", 2, "-p", "\n".join(PEER["texts"]), "--pooling", pooling)
    exact = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
    form = ("--embd-normalize", norm, "--embd-output-format", "raw")
    lines = run("embedding", *given, *exact, *form).out.splitlines()
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        found, want = line.split()[: len(row)], list(map(float, row))
        assert ["." in number for number in found] == ["." in number for number in row]
        # A whole number is the nearest one, and may be its neighbour.
        atol = 1.1 if norm == 0 else 2e-6
        np.testing.assert_allclose([float(number) for number in found], want, rtol=1e-6, atol=atol)


def test_scores_of_pairs(run: Run, tmp_path: Path) -> None:
    path = write_seeded(tmp_path, "reranker", with_words(SPECS["bert"], pooling_type=4))
    with Llama(path, n_threads=2) as llm:
        (score,) = llm.rank("hello", ["world"])
    assert (
        run("embedding", "-m", path, "-p", "hello\tworld").out == f"rerank score 0: {score:8.3f}\n"
    )
    raw = run("embedding", "-m", path, "-p", "hello\tworld", "--embd-output-format", "raw").out
    assert float(raw) == pytest.approx(score, abs=6e-8)


def test_similarities_of_zeros() -> None:
    rows = [np.zeros(3, np.float32), np.ones(3, np.float32), np.zeros(3, np.float32)]
    assert np.allclose(similarities(rows), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])


def test_what_is_missing_is_told(run: Run) -> None:
    assert "There is no text" in run("embedding").usage_error
    assert (
        "--embd-separator is empty"
        in run("embedding", "-p", "a", "--embd-separator", "").usage_error
    )
