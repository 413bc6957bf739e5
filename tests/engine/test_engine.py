"""Many requests at once: each answer is the one that its prompt gets alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import ArgumentError, BadBatch, GgmlpyError, Llama
from ggmlpy.engine.generation import Request
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.sampling import SamplingParams
from tests.models.tiny import Tiny, write_model

RNG = np.random.default_rng(11)
ENDLESS: dict[str, Any] = {"logit_bias": {2: -1000.0}}  # never the end of the text
LETTERS = list("abcdefghij klmnop")


def words(n: int) -> str:
    return "".join(RNG.choice(LETTERS, n))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny(n_ctx=4096))


def load(path: Path, **options: Any) -> Llama:
    return Llama(path, **{"backend": "cpu", "n_threads": 2, "n_ctx": 256, **options})


def text_of(result: dict[str, Any]) -> str:
    return str(result["choices"][0]["text"])


@pytest.mark.parametrize(
    ("layout", "temperature"), [("split", 0.0), ("unified", 1.0), ("paged", 1.0)]
)
def test_200_prompts_on_8_sequences_with_too_small_a_cache(
    path: Path, layout: str, temperature: float
) -> None:
    """Where cells are shared, all eight cannot be held at once: some are preempted, none is cut.
    Prompts run in chunks of the few tokens that decode steps leave, in the order of three
    priorities."""
    prompts = [words(int(n)) for n in RNG.integers(1, 30, 200)]
    options: dict[str, Any] = {"max_tokens": 16, "temperature": temperature, "seed": 5, **ENDLESS}
    n_ctx = 8 * 48 if layout == "split" else 90
    sizes = {"n_seq_max": 8, "kv_layout": layout, "n_ctx": n_ctx, "n_ubatch": 32}
    with load(path, token_budget=12, **sizes) as llm:
        requests = [llm.request(p, priority=i % 3, **options) for i, p in enumerate(prompts)]
        got = [text_of(r) for r in llm.generate(requests)]
        assert not llm.engine.has_work
        n_preempted = llm.timings.n_preempted
    with load(path) as alone:
        for prompt, text in zip(prompts, got, strict=True):
            assert text == text_of(alone(prompt, **options)), prompt
    assert len(got) == 200
    assert (n_preempted > 0) == (layout != "split")


def test_what_is_preempted_is_swapped_in_and_finishes(path: Path) -> None:
    prompts = [words(20) for _ in range(4)]
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0, **ENDLESS}
    with load(path, n_seq_max=4, kv_unified=True, n_ctx=170) as llm:
        got = [text_of(r) for r in llm.generate(prompts, **options)]
        assert llm.timings.n_preempted > 0
    with load(path) as alone:
        assert got == [text_of(alone(p, **options)) for p in prompts]


def test_steps_hold_at_most_a_ubatch_and_writing_goes_on_beside_prompts(path: Path) -> None:
    with load(path, n_seq_max=3, n_ctx=3 * 128, n_ubatch=16, backend="reference") as llm:
        engine = llm.engine
        sampling = SamplingParams(temperature=0, logit_bias={2: -1000.0})
        first = engine.add(Request(llm.tokenize("ab"), 30, sampling))
        engine.step()
        second = engine.add(Request(llm.tokenize(words(60)), 3, sampling))
        seen = [{output.id for output in engine.step()} for _ in range(4)]
        assert all(first in ids for ids in seen)  # never waits for the other's prompt
        assert second not in seen[0]  # which takes more than one step
        assert max(shape.n_tokens for shape in llm._context.plans.plans) <= 16


def test_streams_of_one_model_can_be_read_in_turns(path: Path) -> None:
    options: dict[str, Any] = {"max_tokens": 16, "temperature": 0}
    with load(path, n_seq_max=2) as llm:
        want = [text_of(llm(p, **options)) for p in ("abc", "def")]
        streams = [llm(p, stream=True, **options) for p in ("abc", "def")]
        got = ["", ""]
        for pair in zip(*streams, strict=False):
            for i, chunk in enumerate(pair):
                got[i] += text_of(chunk)
        for i, stream in enumerate(streams):
            got[i] += "".join(text_of(chunk) for chunk in stream)
    assert got == want


def test_more_streams_than_sequences_wait_their_turn(path: Path) -> None:
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    with load(path, n_seq_max=1) as llm:
        want = text_of(llm("def", **options))
        paused = llm("abc", stream=True, **options)
        next(paused)
        assert "".join(text_of(c) for c in llm("def", stream=True, **options)) == want
        paused.close()
        assert not llm.engine.has_work


def test_cancel_frees_the_sequence_wherever_it_is(path: Path) -> None:
    with load(path, n_seq_max=1, backend="reference") as llm:
        engine = llm.engine
        sampling = SamplingParams(temperature=0)
        running = engine.add(Request(llm.tokenize("abc"), 50, sampling))
        waiting = engine.add(Request(llm.tokenize("def"), 50, sampling))
        engine.step()
        engine.cancel(waiting)
        engine.cancel(running)
        engine.cancel(999)
        assert not engine.has_work
        assert engine.step() == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prompt_that_begins_like_another_runs_only_what_is_new(path: Path, layout: str) -> None:
    """Of a finished sequence and of one still running alike."""
    common = words(30)
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0}
    with load(path, n_seq_max=3, n_ctx=3 * 128, kv_layout=layout) as llm:
        prompts = [common + tail for tail in ("a", "bb", "ccc")]
        want = []
        for prompt in prompts:
            llm.reset()
            want.append(text_of(llm(prompt, **options)))
        llm.reset()
        n_common = len(llm.tokenize(common))
        running = llm(prompts[0], stream=True, **options)
        got = text_of(next(running))
        before = llm.timings.n_prompt
        assert text_of(llm(prompts[1], **options)) == want[1]
        assert llm.timings.n_prompt - before <= len(llm.tokenize(prompts[1])) - n_common + 2
        assert text_of(llm(prompts[2], **options)) == want[2]
        assert got + "".join(text_of(chunk) for chunk in running) == want[0]


def test_bad_prompts_are_refused_before_anything_runs(path: Path) -> None:
    with load(path, n_seq_max=2, n_ctx=64) as llm:
        with pytest.raises(BadBatch, match="n_ctx_seq = 32"):
            llm.generate(["ab", words(200)])
        assert not llm.engine.has_work


def test_generate_left_early_leaves_nothing_behind(path: Path) -> None:
    with load(path, n_seq_max=2) as llm:
        results = llm.generate(["ab", "cd", "ef"], max_tokens=4, temperature=0)
        next(results)
        results.close()
        assert not llm.engine.has_work


def test_an_error_of_one_request_ends_that_one_alone(path: Path) -> None:
    """Though the step that raises it is asked for by another one's reader."""

    def fail(tokens: Any, logits: Any) -> Any:
        if len(tokens) > 8:
            raise ZeroDivisionError("the callback's own")
        return logits

    options: dict[str, Any] = {"max_tokens": 16, "temperature": 0, **ENDLESS}
    with load(path, n_seq_max=2) as llm:
        want = text_of(llm("world", **options))
        failing = llm("hello", stream=True, logits_processor=fail, **options)
        next(failing)
        assert "".join(text_of(c) for c in llm("world", stream=True, **options)) == want
        with pytest.raises(ZeroDivisionError, match="the callback's own"):
            list(failing)
        assert not llm.engine.has_work
        assert text_of(llm("world", **options)) == want


def test_an_interrupt_while_sampling_drops_what_was_being_written(path: Path) -> None:
    def interrupt(tokens: Any, logits: Any) -> Any:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"max_tokens": 16, "temperature": 0, **ENDLESS}
    with load(path, n_seq_max=2) as llm:
        want = text_of(llm("world", **options))
        other = llm("hello", stream=True, **options)
        next(other)
        with pytest.raises(KeyboardInterrupt):
            llm("world", logits_processor=interrupt, **options)
        with pytest.raises(GgmlpyError, match="was reset or closed while it was generated"):
            list(other)
        assert text_of(llm("world", **options)) == want


def test_a_reset_ends_streams_with_an_error(path: Path) -> None:
    with load(path) as llm:
        stream = llm("hello", stream=True, max_tokens=12, **ENDLESS)
        next(stream)
        llm.logits([1, 2, 3])
        with pytest.raises(GgmlpyError, match="was reset or closed while it was generated"):
            list(stream)


def test_what_is_never_read_never_runs(path: Path) -> None:
    with load(path) as llm:
        llm("hello", stream=True, max_tokens=100, **ENDLESS)
        llm.generate(["hello", "there"], max_tokens=100, **ENDLESS)
        assert not llm.engine.has_work
        llm("world", max_tokens=2, **ENDLESS)
        assert llm.timings.n_generated == 2


def test_threads_may_share_a_model(path: Path) -> None:
    options: dict[str, Any] = {"max_tokens": 16, "temperature": 0, **ENDLESS}
    prompts = [words(5) for _ in range(6)]
    with load(path, n_seq_max=2) as llm:
        want = [text_of(llm(prompt, **options)) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            got = list(pool.map(lambda prompt: text_of(llm(prompt, **options)), prompts))
    assert got == want


def test_an_unknown_option_is_named(path: Path) -> None:
    options: dict[str, Any] = {"top_q": 3}
    with load(path) as llm, pytest.raises(TypeError, match="unexpected keyword argument 'top_q'"):
        llm("ab", **options)


def test_a_request_that_cancels_itself_ends_with_the_step(path: Path) -> None:
    with load(path, n_seq_max=2, backend="reference") as llm:
        engine = llm.engine
        ids: list[int] = []

        def cancel_all(tokens: Any, logits: Any) -> Any:
            for id in ids:
                engine.cancel(id)
            return logits

        sampling = SamplingParams(temperature=0)
        prompt = llm.tokenize("abc")
        ids += [
            engine.add(Request(prompt, 5, sampling, logits_processor=cancel_all)),
            engine.add(Request(prompt, 5, sampling)),
        ]
        assert len(engine.step()) == 2
        assert not engine.has_work


@pytest.mark.parametrize("prompt", [b"Tom", None, 5])
def test_prompts_are_text_or_token_ids(path: Path, prompt: Any) -> None:
    with load(path, backend="null") as llm:
        with pytest.raises(ArgumentError, match=r"prompt is .*: it must be a string or token ids"):
            llm(prompt)
        with pytest.raises(ArgumentError, match="prompts is one text: it must be a list of texts"):
            llm.generate("Tom")


def test_no_warning_where_each_sequence_has_what_the_model_was_trained_with(path: Path) -> None:
    load(path, n_ctx=4 * 4096, n_seq_max=4, backend="null").close()
