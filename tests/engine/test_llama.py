"""`Llama` as a user of llama-cpp-python knows it, on tiny models and on a real one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmlpy
from ggmlpy import (
    ArgumentError,
    BadBatch,
    ContextWarning,
    Llama,
    MissingFile,
    TokenizerError,
    Unsupported,
)
from tests.models import tiny as tiny_models
from tests.models.tiny import Tiny, byte_vocabulary, write_model
from tests.shared import shared_path

BACKENDS = ["reference", "cpu"]


@pytest.fixture(scope="module")
def stories() -> Llama:
    return Llama(shared_path("stories260K.gguf"), backend="cpu", n_threads=2)


def test_public_names() -> None:
    assert sorted(ggmlpy.__all__) == [
        "AllocationError", "ArgumentError", "AsyncLlama", "BackendError", "BadBatch", "Batch",
        "CacheFull", "Context", "ContextWarning", "DownloadError", "DraftModel", "Engine",
        "FileError", "Flag", "GGUFError",
        "GGUFFile", "GgmlpyError", "Grammar", "GrammarError", "Graph",
        "IndexOutOfRange", "KernelError", "Llama", "LlamaState", "LoraAdapter",
        "MissingFile", "MissingPackage", "PlacementWarning", "PromptLookup", "Request",
        "RopeOverrides",
        "SamplingError", "SamplingParams", "ShapeError", "StateError", "TYPES", "TemplateError",
        "Tensor", "TensorType", "Tokenizer", "TokenizerError", "Unsupported", "WeightError",
        "WeightWarning", "WriteError", "backend_names", "compute", "from_bytes", "from_numpy",
        "get_backend", "listening", "ops", "packaged_model", "scope", "zeros",
    ]  # fmt: skip
    assert all(hasattr(ggmlpy, name) for name in ggmlpy.__all__)


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_text_is_llama_cpps(backend: str) -> None:
    """f32 KV, as the reference was made; its texts end in a blank line that is not the model's."""
    cases = json.loads(shared_path("reference/greedy.json").read_text(encoding="utf-8"))
    path = shared_path("stories260K.gguf")
    with Llama(path, backend=backend, type_k="f32", type_v="f32") as llm:
        for case in cases:
            made = llm(case["prompt"], max_tokens=case["n"], temperature=0)
            assert made["choices"][0]["text"] == case["text"].removesuffix("\n\n")
            assert made["usage"]["completion_tokens"] == case["n"]


def test_a_completion_has_llama_cpp_pythons_fields(tiny: Llama, tiny_path: Path) -> None:
    made = tiny("ab", max_tokens=3, temperature=0)
    assert made["id"].startswith("cmpl-")
    assert made["object"] == "text_completion"
    assert made["model"] == str(tiny_path)
    assert isinstance(made["created"], int)
    (choice,) = made["choices"]
    assert set(choice) == {"text", "index", "logprobs", "finish_reason"}
    assert choice["index"] == 0
    assert choice["logprobs"] is None
    n_prompt = len(tiny.tokenize("ab"))
    n_made = made["usage"]["completion_tokens"]
    assert made["usage"] == {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_made,
        "total_tokens": n_prompt + n_made,
    }


def test_chunks_join_to_the_whole(tiny: Llama) -> None:
    whole = tiny("ab", max_tokens=20, seed=1)["choices"][0]
    chunks = list(tiny("ab", max_tokens=20, seed=1, stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["text"]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(reasons) - 1) + [whole["finish_reason"]]
    assert len({c["id"] for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)


def test_echo_puts_the_prompt_first(tiny: Llama) -> None:
    plain = tiny("ab", max_tokens=5, temperature=0)["choices"][0]["text"]
    assert tiny("ab", max_tokens=5, temperature=0, echo=True)["choices"][0]["text"] == "ab" + plain
    chunks = tiny("ab", max_tokens=5, temperature=0, echo=True, stream=True)
    assert "".join(c["choices"][0]["text"] for c in chunks) == "ab" + plain


def test_a_seed_makes_it_repeatable(tiny: Llama) -> None:
    made = [tiny("a", max_tokens=12, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    texts = [m["choices"][0]["text"] for m in made]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_a_seed_of_the_model_serves_every_call(tiny_path: Path) -> None:
    def text() -> str:
        with Llama(tiny_path, backend="reference", seed=7) as llm:
            return str(llm("a", max_tokens=12, temperature=1.5)["choices"][0]["text"])

    assert text() == text()


def test_stop_strings_end_the_text_before_them(tiny: Llama) -> None:
    text = tiny("ab", max_tokens=30, temperature=0)["choices"][0]["text"]
    stop = text[4:7]
    made = tiny("ab", max_tokens=30, temperature=0, stop=[stop])["choices"][0]
    assert made["text"] == text[: text.index(stop)]
    assert made["finish_reason"] == "stop"


def test_length_ends_the_text_at_max_tokens(tiny: Llama) -> None:
    made = tiny("ab", max_tokens=4, temperature=0)
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("max_tokens", [None, -1, 0, 1000])
def test_text_never_outgrows_the_context(tiny_path: Path, max_tokens: int | None) -> None:
    with Llama(tiny_path, backend="reference", n_ctx=16) as llm:
        made = llm("abc", max_tokens=max_tokens, temperature=0)
    # The last token written is never run, so one more than the cache holds can come.
    assert made["usage"]["total_tokens"] <= 17


def test_a_prompt_too_long_says_how_long(tiny_path: Path) -> None:
    with (
        Llama(tiny_path, backend="reference", n_ctx=8) as llm,
        pytest.raises(BadBatch, match=r"the prompt is too long: \d+ tokens, .* n_ctx_seq = 8"),
    ):
        llm("abcdefghijkl")


def test_token_prompts_are_taken_as_they_are(tiny: Llama) -> None:
    text = tiny("ab", max_tokens=5, temperature=0)["choices"][0]["text"]
    tokens = tiny.tokenize("ab")
    assert tiny(tokens, max_tokens=5, temperature=0)["choices"][0]["text"] == text
    with pytest.raises(BadBatch, match="token 999 at index 1"):
        tiny([1, 999])


def test_what_the_cache_holds_is_not_run_again(tiny: Llama) -> None:
    first = tiny("abcdef", max_tokens=4, temperature=0)["choices"][0]["text"]
    n_prompt = len(tiny.tokenize("abcdef"))
    assert tiny.timings.n_prompt == n_prompt
    again = tiny("abcdef", max_tokens=4, temperature=0)["choices"][0]["text"]
    assert again == first
    assert tiny.timings.n_prompt == 1
    assert tiny.timings.n_reused == n_prompt - 1
    tiny.reset()
    tiny("abcdef", max_tokens=4, temperature=0)
    assert tiny.timings.n_reused == 0


def test_a_stream_left_early_does_not_disturb_the_next_call(tiny: Llama) -> None:
    want = tiny("abc", max_tokens=8, temperature=0)["choices"][0]["text"]
    stream = tiny("xyz", max_tokens=20, temperature=0, stream=True)
    next(stream)
    next(stream)
    stream.close()
    assert tiny("abc", max_tokens=8, temperature=0)["choices"][0]["text"] == want


def test_logprobs_are_the_models_own(tiny: Llama) -> None:
    made = tiny("ab", max_tokens=4, temperature=0, logprobs=3)["choices"][0]
    shown = made["logprobs"]
    assert len(shown["tokens"]) == len(shown["token_logprobs"]) == len(shown["top_logprobs"]) == 4
    tokens = tiny.tokenize("ab")
    logits = tiny.logits(tokens)[-1].astype(np.float64)
    want = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert shown["token_logprobs"][0] == pytest.approx(want.max())
    assert max(shown["top_logprobs"][0].values()) == pytest.approx(want.max())


def test_logit_bias_and_processor_steer(tiny: Llama) -> None:
    (wanted,) = tiny.tokenize("b", add_bos=False)  # " b" as one token
    made = tiny("a", max_tokens=3, temperature=0, logit_bias={wanted: 100.0})
    assert made["choices"][0]["text"] == " b b b"

    def only(tokens: Any, logits: Any) -> Any:
        logits[:] = -np.inf
        logits[wanted] = 0
        return logits

    made = tiny("a", max_tokens=3, temperature=0, logits_processor=only)
    assert made["choices"][0]["text"] == " b b b"


def test_end_of_generation_stops(tiny: Llama) -> None:
    made = tiny("a", max_tokens=5, temperature=0, logit_bias={2: 1000.0})
    assert made["choices"][0] == {
        "text": "", "index": 0, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    assert made["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("bos", ["{{ bos_token }}", ""], ids=["with-bos", "without"])
def test_chat_renders_the_files_template(tmp_path: Path, bos: str) -> None:
    template = (
        bos + "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    path = write_model(tmp_path / "chat.gguf", Tiny(), tokenizer__chat_template=template)
    messages = [{"role": "user", "content": "ab"}]
    with Llama(path, backend="reference") as llm:
        made = llm.create_chat_completion(messages, max_tokens=6, temperature=0)
        prompt = llm.tokenizer.encode("<s>[user]ab[assistant]", special=True)
        same = llm(prompt, max_tokens=6, temperature=0)["choices"][0]
        assert isinstance(made, dict)
        assert made["object"] == "chat.completion"
        assert made["choices"][0]["message"] == {"role": "assistant", "content": same["text"]}
        assert made["usage"]["prompt_tokens"] == len(prompt)
        chunks = list(
            llm.create_chat_completion(messages, max_tokens=6, temperature=0, stream=True)
        )
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(d.get("content", "") for d in deltas) == same["text"]
    assert deltas[-1] == {}


def test_detokenize_gives_the_text_back(tiny: Llama) -> None:
    for text in ("ab cd", "grüße 🎈", " lead", "a  b\n"):
        assert tiny.detokenize(tiny.tokenize(text)) == text


def test_logits_of_a_fresh_sequence(tiny: Llama) -> None:
    tiny("something else", max_tokens=3, temperature=0)
    tokens = tiny.tokenize("abc")
    first = tiny.logits(tokens)
    assert first.shape == (len(tokens), tiny.n_vocab())
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, tiny.logits(tokens))


def test_more_context_than_trained_is_a_warning(tiny_path: Path) -> None:
    with pytest.warns(ContextWarning, match="n_ctx is 4096, the model was trained with 128"):
        Llama(tiny_path, backend="null", n_ctx=4096).close()


def test_an_unknown_tokenizer_loads_and_runs_on_tokens(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), tokenizer__ggml__model="mystery")
    with Llama(path, backend="reference") as llm:
        assert llm.logits([1, 2, 3]).shape == (3, 288)
        with pytest.raises(TokenizerError, match="mystery"):
            llm("hello")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "tpu"}, ggmlpy.BackendError, "no backend 'tpu'; there are cpu, reference"),
        ({"n_threads": 0}, ArgumentError, "n_threads is 0"),
        ({"n_ctx": -1}, ArgumentError, "n_ctx is -1"),
        ({"n_ubatch": 0}, ArgumentError, "n_ubatch is 0"),
        ({"token_budget": -1}, ArgumentError, "token_budget is -1: it must be a whole number, at"),
        ({"token_budget": "64"}, ArgumentError, "Llama: token_budget is a str: it must be a whole"),
        ({"type_k": "q9"}, Unsupported, "type_k is 'q9': must be one of f32"),
        ({"type_v": "q6_K"}, Unsupported, "type_v is q6_K"),
    ],
)
def test_options_that_do_not_work(
    tiny_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Llama(tiny_path, **options)


def test_paths_that_do_not_work(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"nothing\.gguf"):
        Llama(tmp_path / "nothing.gguf")
    with pytest.raises(MissingFile, match="folder"):
        Llama(tmp_path)


@pytest.mark.placed
def test_describe_names_what_was_decided(stories: Llama) -> None:
    text = stories.describe()
    assert "llama, 5 layers" in text
    assert "K f16 " in text
    assert re.search("^backend +cpu, 2 threads", text, re.MULTILINE)


def test_steps_of_one_shape_reuse_one_plan(stories: Llama) -> None:
    stories.reset()
    stories("Once upon a time", max_tokens=40, temperature=0)
    before = stories.n_plans_built
    stories("Once upon a time there was", max_tokens=60, temperature=0)
    assert stories.n_plans_built <= before + 1  # another prompt length, no new decode step


@pytest.mark.placed
@pytest.mark.parametrize("n_ctx", [2**62, 2**45])
@pytest.mark.filterwarnings("ignore::ggmlpy.ContextWarning")
def test_a_context_beyond_all_memory_is_a_typed_error(tiny_path: Path, n_ctx: int) -> None:
    with pytest.raises(ggmlpy.AllocationError, match=r"bytes of memory cannot .* smaller n_ctx"):
        Llama(tiny_path, n_ctx=n_ctx)


def test_more_tokens_than_rows_of_the_embedding(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), **changed_vocabulary(289))
    wanted = '^m.gguf: key "tokenizer.ggml.tokens" has 289 tokens, must be at most 288, the rows'
    with pytest.raises(ggmlpy.WeightError, match=wanted):
        Llama(path, backend="reference")


def test_rows_of_the_embedding_without_a_token_are_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows pad the vocabulary of 286, and one of them always has the largest logit."""
    made = tiny_models.weights(Tiny())
    made["output.weight"][286] *= 1000
    made["output.weight"][287] = -made["output.weight"][286]
    monkeypatch.setattr(tiny_models, "weights", lambda m: made)
    path = write_model(tmp_path / "m.gguf", Tiny(), **changed_vocabulary(286))
    with Llama(path, backend="reference") as llm:
        rows = llm.engine.context.decode([1, 5, 6])[0].copy()
        assert rows.argmax() >= 286
        logits = llm.logits([1, 5, 6])
        assert logits.shape == (3, llm.n_vocab()) == (3, 286)
        assert np.array_equal(logits[-1], rows[:286])
        llm([1, 5, 6], max_tokens=2, temperature=0, logit_bias={2: -1e9})
        assert llm.held_tokens[0][3] == rows[:286].argmax()
        for seed in range(3):
            llm([1, 5, 6], max_tokens=8, temperature=5.0, top_k=0, logprobs=3, seed=seed)
        for use in (llm, llm.logits):
            with pytest.raises(BadBatch, match="token 286 at index 1 is not in the vocabulary of"):
                use([1, 286])
        with pytest.raises(TokenizerError, match="token 286 is outside the vocabulary of 286"):
            llm.detokenize([286])


def changed_vocabulary(n_tokens: int) -> dict[str, object]:
    return {key.replace(".", "__"): value for key, value in byte_vocabulary(n_tokens).items()}


@pytest.mark.placed
def test_helpers_that_llama_cpp_python_has(tiny: Llama) -> None:
    assert (tiny.n_ctx(), tiny.n_vocab(), tiny.n_embd()) == (128, 288, 64)
    assert (tiny.token_bos(), tiny.token_eos(), tiny.token_eot()) == (1, 2, None)
    assert repr(tiny) == (
        "Llama('tiny.gguf', llama, 2 layers, n_ctx=128, n_ctx_seq=128, n_seq_max=1,"
        " backend='reference')"
    )


def test_held_tokens_are_the_prompt_and_what_was_run_of_the_text(tiny: Llama) -> None:
    assert tiny.held_tokens == {}
    tiny("abc", max_tokens=3, temperature=0, logit_bias={2: -1000.0})
    (held,) = tiny.held_tokens.values()
    assert held[:-2] == tiny.tokenize("abc")
    tiny.reset()
    assert tiny.held_tokens == {}
