"""Embeddings and scores of texts: pooled as llama.cpp does, the same whatever runs beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggmlpy import ArgumentError, BadBatch, Llama, Unsupported
from ggmlpy.backends import get_backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.gguf import GGUFFile
from tests.models.checks import nmse
from tests.models.seeded import N_VOCAB, Seeded, write_seeded
from tests.models.seeded_specs import SPECS
from tests.unit.vocabularies import wpm_metadata

QWEN3_RANK = replace(
    SPECS["qwen3"],
    keys={**SPECS["qwen3"].keys, "classifier.output_labels": ["yes", "no"], "pooling_type": 4},
    optional=SPECS["qwen3"].optional + r"|cls\.output\.weight",
)
TEXTS = [list(range(5, 5 + n)) for n in (3, 1, 40, 17, 9)]


def with_words(spec: Seeded, **keys: object) -> Seeded:
    """The same with a vocabulary of a few words, padded to the rows of the embedding."""
    vocabulary = wpm_metadata()
    tokens, types = (vocabulary[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    n_more = N_VOCAB - len(tokens)
    vocabulary["tokenizer.ggml.tokens"] = [*tokens, *(f"[unused{i}]" for i in range(n_more))]
    vocabulary["tokenizer.ggml.token_type"] = [*types, *[5] * n_more]
    return replace(spec, keys={**spec.keys, **keys}, unprefixed={**spec.unprefixed, **vocabulary})


def opened(folder: Path, spec: Seeded, **options: object) -> Llama:
    path = write_seeded(folder, "model", spec)
    sizes = {"n_ctx": 64, "n_ubatch": 64, "type_k": "f32", "type_v": "f32"}
    options = {"backend": "cpu", "n_threads": 2, **sizes, **options}
    return Llama(path, **options)  # type: ignore[arg-type]


def tensor(llm: Llama, name: str) -> np.ndarray:
    info = GGUFFile.open(llm.model_path).tensors[name]
    shape = [n for n in info.ne[::-1] if n > 1]
    return info.copy().view(np.float32).reshape(shape).astype(np.float64)


@pytest.mark.parametrize("name", ["eurobert", "qwen3", "mamba2", "gemma2"])
def test_pooled_embeddings_are_made_of_those_of_tokens(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, SPECS[name]) as llm:
        tokens = llm.embed(TEXTS, pooling="none", normalize=False)
        assert [len(rows) for rows in tokens] == [len(text) for text in TEXTS]
        expected = {
            "mean": [rows.mean(axis=0, dtype=np.float64) for rows in tokens],
            "cls": [rows[0] for rows in tokens],
            "last": [rows[-1] for rows in tokens],
        }
        for pooling, want in expected.items():
            found = llm.embed(TEXTS, pooling=pooling, normalize=False)
            np.testing.assert_allclose(np.stack(found), np.stack(want), rtol=2e-7)
            alone = [llm.embed([text], pooling=pooling, normalize=False)[0] for text in TEXTS]
            np.testing.assert_array_equal(np.stack(found), np.stack(alone))
            scaled = np.stack(llm.embed(TEXTS, pooling=pooling))
            np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1.0, rtol=1e-6)


def test_a_decoder_gives_what_its_logits_are_computed_from(tmp_path: Path) -> None:
    with opened(tmp_path, SPECS["qwen3"]) as llm:
        rows = llm.embed([TEXTS[2]], pooling="none", normalize=False)[0].astype(np.float64)
        name = "output.weight"
        assert nmse(rows @ tensor(llm, name).T, llm.logits(TEXTS[2])) < 1e-12
        with pytest.raises(Unsupported, match="has no classifier"):
            llm.embed(TEXTS, pooling="rank")


def test_scores_of_a_decoder_are_those_of_the_last_token(tmp_path: Path) -> None:
    with opened(tmp_path, QWEN3_RANK) as llm:
        found = np.stack(llm.embed(TEXTS))  # pooling of the file
        last = np.stack(llm.embed(TEXTS, pooling="last", normalize=False))
        weights = np.exp(last @ tensor(llm, "cls.output.weight").T)
        np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), rtol=1e-5)
        alone = [llm.embed([text])[0] for text in TEXTS]
        np.testing.assert_array_equal(found, np.stack(alone))


@pytest.mark.parametrize(("name", "pooling"), [("neo-bert", "cls"), ("modern-bert", "mean")])
def test_scores_of_an_encoder(tmp_path: Path, name: str, pooling: str) -> None:
    with opened(tmp_path, SPECS[name]) as llm:
        found = np.stack(llm.embed(TEXTS, pooling="rank"))
        x = np.stack(llm.embed(TEXTS, pooling=pooling, normalize=False)).astype(np.float64)
        x = x @ tensor(llm, "cls.weight").T
        if name == "neo-bert":
            x = np.tanh(x + tensor(llm, "cls.bias"))
        else:
            x *= 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x)))
            x -= x.mean(axis=1, keepdims=True)
            x /= np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5)
            x *= tensor(llm, "cls.norm.weight")
        want = x @ tensor(llm, "cls.output.weight") + tensor(llm, "cls.output.bias")
        np.testing.assert_allclose(found[:, 0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["modern-bert", "t5encoder"])
def test_a_device_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    pooling = "rank" if name == "modern-bert" else "mean"
    with opened(tmp_path, SPECS[name]) as llm:
        want = np.stack(llm.embed(TEXTS, pooling=pooling))
    cpu = get_backend("cpu", 2)
    with opened(tmp_path, SPECS[name], backend=[MockBackend(seed=1, inner=cpu), cpu]) as llm:
        np.testing.assert_array_equal(np.stack(llm.embed(TEXTS, pooling=pooling)), want)


def test_texts_and_pairs(tmp_path: Path) -> None:
    """A text is between CLS and SEP; a pair has SEP between its texts."""
    with opened(tmp_path, with_words(SPECS["bert"], pooling_type=2)) as llm:
        tokens = llm.tokenize("hello world")
        assert (tokens[0], tokens[-1]) == (2, 3)
        np.testing.assert_array_equal(llm.embed("hello world"), llm.embed([tokens])[0])
        np.testing.assert_array_equal(llm.embed(["hello"])[0], llm.embed([b"hello"])[0])
        inner = [llm.tokenize(text)[1:-1] for text in ("hello", "world")]
        pair = [2, *inner[0], 3, *inner[1]]
        (score,) = llm.rank("hello", ["world"])
        assert score == llm.embed([pair], pooling="rank")[0][0]
        assert llm.embed([]) == []
        assert llm.rank("hello", []) == []


def test_the_prompt_of_a_reranker_is_its_template(tmp_path: Path) -> None:
    spec = with_words(SPECS["bert"])
    template = {"tokenizer.chat_template.rerank": "{query} hello {document}"}
    spec = replace(spec, unprefixed={**spec.unprefixed, **template})
    with opened(tmp_path, spec) as llm:
        text = "{document} hello world"  # of a query as it is
        (score,) = llm.rank("{document}", ["world"])
        assert score == llm.embed(text, pooling="rank")[0]


def test_what_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, with_words(SPECS["bert"]), n_ctx=100) as llm:
        with pytest.raises(BadBatch, match="text 1 has 65 tokens: n_ubatch is 64"):
            llm.embed([[5], [5] * 65])
        with pytest.raises(BadBatch, match="no tokens"):
            llm.embed([[5], []])
        with pytest.raises(BadBatch, match="not in the vocabulary"):
            llm.embed([[N_VOCAB]])
        with pytest.raises(ArgumentError, match='pooling is "max"'):
            llm.embed("hello", pooling="max")
        with pytest.raises(Unsupported, match="has no logits"):
            llm.logits([5])
        with pytest.raises(Unsupported, match="generates no text"):
            llm("hello")
