"""Llama with an encoder-decoder model: it encodes the prompt, and decodes the answer."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import BadBatch, Llama, Unsupported
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.engine.generation import Piece
from ggmlpy.sampling import SamplingParams
from tests.engine.test_context_memory import device_of
from tests.models.seeded import Seeded, write_seeded
from tests.models.seeded_specs import SPECS
from tests.oracle.t5 import T5

START, EOS = 70, 1
SPACE = "\u2581"
WORDS = [SPACE + c for c in string.ascii_lowercase] + list(string.ascii_lowercase)
TOKENS = ["<pad>", "</s>", "<unk>", SPACE, *WORDS, *(f"<{i}>" for i in range(16))]
VOCABULARY = {
    "tokenizer.ggml.model": "t5",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [-float(i % 7) for i in range(len(TOKENS))],
    "tokenizer.ggml.token_type": [3, 3, 2] + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.eos_token_id": EOS,
    "tokenizer.ggml.unknown_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.add_eos_token": True,
}
PROMPTS = ["translate this", "a b c", "z", "what is the longest of all these texts", "zz top"]
NO_END = {EOS: -100.0}
GREEDY: dict[str, Any] = {"max_tokens": 20, "temperature": 0}


def seeded(**more: Any) -> Seeded:
    spec = SPECS["t5"]
    keys = dict(spec.keys) | {"decoder_start_token_id": START}
    return replace(spec, keys=keys, unprefixed=VOCABULARY | more)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeded(tmp_path_factory.mktemp("t5"), "t5", seeded())


def opened(path: Path, **options: Any) -> Llama:
    return Llama(path, n_threads=2, type_k="f32", type_v="f32", **options)


def texts(llm: Llama, prompts: list[str], **options: Any) -> list[str]:
    found = llm.generate(prompts, **GREEDY | options)
    return [result["choices"][0]["text"] for result in found]


def test_the_answer_is_that_of_the_oracle(path: Path) -> None:
    oracle = T5.of(path, 4)
    with opened(path) as llm:
        source = llm.tokenize(PROMPTS[0])
        assert source[-1] == EOS
        answer = [START]
        sampling = SamplingParams(temperature=0, logit_bias=NO_END)
        for piece in llm.pieces(PROMPTS[0], sampling, max_tokens=20):
            logits = oracle.logits(source, answer)[-1]
            logits[EOS] -= 100
            assert piece.token is not None and piece.token == logits.argmax()
            answer.append(piece.token)
        assert len(answer) == 21
        result = llm(PROMPTS[0], logit_bias=NO_END, **GREEDY)
        assert result["choices"][0]["text"] == llm.tokenizer.decode(answer[1:], start=False)
        assert result["usage"]["prompt_tokens"] == len(source)
        assert llm.timings.n_prompt == len(source) + 1
        chunks = llm(PROMPTS[0], stream=True, logit_bias=NO_END, **GREEDY)
        assert "".join(c["choices"][0]["text"] for c in chunks) == result["choices"][0]["text"]


@pytest.mark.parametrize(
    "options",
    [
        {"n_seq_max": 3, "n_ctx_seq": 64},
        {"n_seq_max": 8, "n_ctx": 60, "kv_layout": "unified", "n_ubatch": 48},
        {"n_seq_max": 4, "n_ctx": 96, "kv_layout": "paged"},
        {"n_seq_max": 2, "n_ctx_seq": 64, "flash_attn": False},
    ],
    ids=["split", "a full stream", "paged", "separate ops"],
)
def test_answers_are_the_same_together(path: Path, options: dict[str, Any]) -> None:
    alone_options = {"flash_attn": options.get("flash_attn", True)}
    with opened(path, **alone_options) as one, opened(path, **options) as many:
        alone = [texts(one, [prompt], logit_bias=NO_END)[0] for prompt in PROMPTS]
        assert len(set(alone)) > 2
        assert texts(many, PROMPTS, logit_bias=NO_END) == alone
        assert texts(many, PROMPTS, logit_bias=NO_END) == alone  # what is held is not used
        if options.get("kv_layout") == "unified":
            assert many.timings.n_preempted


def test_prompts_that_do_not_fit(path: Path) -> None:
    with opened(path, n_ctx=32) as llm:
        with pytest.raises(BadBatch, match="n_ctx_seq = 32"):
            llm([5] * 33)
        assert llm([5] * 32, max_tokens=None, logit_bias=NO_END)["usage"] == {
            "prompt_tokens": 32,
            "completion_tokens": 32,
            "total_tokens": 64,
        }
    with opened(path, n_ubatch=16) as llm, pytest.raises(BadBatch, match="n_ubatch is 16"):
        llm([5] * 17)


def test_embeddings_are_the_encoders(path: Path) -> None:
    with opened(path) as llm:
        want = T5.of(path, 4).embeddings(llm.tokenize(PROMPTS[1]))
        np.testing.assert_allclose(llm.embed(PROMPTS[1], normalize=False), want, atol=1e-4)


def test_what_is_refused(path: Path) -> None:
    with opened(path) as llm:
        with pytest.raises(Unsupported, match=r"use Context\.encode, then Context\.decode"):
            llm.logits([1])
        llm(PROMPTS[0], **GREEDY)
        with pytest.raises(Unsupported, match="cannot be saved or loaded"):
            llm.save_state()


def test_a_decoder_without_a_start(tmp_path: Path) -> None:
    keys = {k: v for k, v in seeded().keys.items() if k != "decoder_start_token_id"}
    nothing = write_seeded(tmp_path, "nothing", replace(seeded(), keys=keys))
    with opened(nothing) as llm, pytest.raises(Unsupported, match="names no token"):
        llm("a")
    bos = replace(seeded(**{"tokenizer.ggml.bos_token_id": 70}), keys=keys)
    with opened(write_seeded(tmp_path, "bos", bos)) as llm:
        first = next(llm.pieces("a", SamplingParams(temperature=0)))
        assert isinstance(first, Piece)
        source = llm.tokenize("a")
        assert first.token == T5.of(tmp_path / "bos.gguf", 4).logits(source, [70])[-1].argmax()


def test_the_description_has_sources(path: Path) -> None:
    with opened(path, n_seq_max=2, n_ctx_seq=256) as llm:
        shown = llm.describe()
    assert "t5, an encoder of 3 layers and a decoder of 2 layers" in shown
    both = r"5 layers \(3 of the encoder, 2 of the decoder\)"
    assert re.search(rf"decoded +2 layers, 2 x 256 .*\n  sources +{both}, 2 x 256 cells", shown)


@pytest.mark.placed
def test_what_fits_counts_both_parts(path: Path) -> None:
    """Weights, K and V of sources and answers, and the graphs of the encoder and the decoder."""
    llm = Llama(path, backend=[device_of(1 << 40), ReferenceBackend()], fit=True)
    context = llm._context
    assert llm.fitted is not None and context.encoder is not None
    device = context.backends[0].buffer_type
    weights = [w for w in llm.model.weights.leaves.values() if w.place is not None]
    held = sum(
        device.tensor_bytes(w.spec) for w in weights if w.place and w.place.buffer.type is device
    )
    caches = [*context.memory.caches, *context.encoder.memory.caches]
    stored = sum(leaf.spec.n_bytes for cache in caches for leaf in cache.store.leaves)
    taken = held + stored + context.compute_bytes["mock"]
    spare = context.compute_bytes["mock"] // 16  # for shapes between those that are looked at
    assert taken <= llm.fitted.used["mock"] <= taken + spare


def test_a_cancelled_request_leaves_no_trace(path: Path) -> None:
    with opened(path) as llm:
        want = texts(llm, PROMPTS[:1], logit_bias=NO_END)
        chunks = llm(PROMPTS[1], stream=True, logit_bias=NO_END, **GREEDY)
        next(chunks)
        chunks.close()
        assert texts(llm, PROMPTS[:1], logit_bias=NO_END) == want


def test_prompts_that_are_encoded_have_no_log_probabilities(path: Path) -> None:
    with opened(path) as llm:
        message = "prompt tokens of an encoder-decoder model have no log-probabilities"
        with pytest.raises(Unsupported, match=message):
            llm.score([[5, 6]], [[7]])
        with pytest.raises(Unsupported, match=message):
            llm("a b c", echo=True, logprobs=1)
        assert llm("a b c", echo=True, max_tokens=1)["choices"][0]["text"].startswith("a b c")
