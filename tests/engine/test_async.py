"""AsyncLlama: the texts of Llama, for many tasks at once; cancelled, closed, failed."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmlpy
from ggmlpy import AsyncLlama, Llama
from ggmlpy.errors import ArgumentError, BadBatch, FileError, GgmlpyError, MissingFile
from tests.adapters import write_adapter
from tests.models.tiny import Tiny, write_model

PROMPTS = ["abc", "hello world", "q", "the quick brown fox", "zz", "abcd"]
OPTIONS: dict[str, Any] = {"max_tokens": 9, "temperature": 0.0, "logit_bias": {2: -np.inf}}
ENDLESS: dict[str, Any] = {**OPTIONS, "max_tokens": 500}


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers can be long."""
    path = tmp_path_factory.mktemp("long") / "tiny.gguf"
    return write_model(path, Tiny(), llama__context_length=4000)


@pytest.fixture
def llm(long_path: Path) -> Iterator[Llama]:
    with Llama(long_path, backend="reference", n_ctx=4000, n_seq_max=4) as llm:
        yield llm


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The result of a coroutine; no task, thread or request is left."""
    before = set(threading.enumerate())

    async def checked() -> Any:
        async with asyncio.timeout(120):
            result = await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    result = asyncio.run(checked())
    for thread in set(threading.enumerate()) - before:  # it ends when nothing is pending
        thread.join(30)
        assert not thread.is_alive(), thread
    return result


def text_of(result: dict[str, Any]) -> str:
    text: str = result["choices"][0]["text"]
    return text


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


def test_many_tasks_get_their_own_texts(llm: Llama) -> None:
    alone = [llm(prompt, **OPTIONS) for prompt in PROMPTS]

    async def main() -> list[dict[str, Any]]:
        many = AsyncLlama(llm)
        return await asyncio.gather(*(many.create_completion(p, **OPTIONS) for p in PROMPTS * 3))

    together = run(main)
    assert [text_of(r) for r in together] == [text_of(r) for r in alone] * 3
    for field in ("choices", "usage", "object", "model"):
        assert together[0][field] == alone[0][field]


@pytest.mark.parametrize(
    "options", [{}, {"echo": True}, {"logprobs": 2, "echo": True}, {"stop": "a"}]
)
def test_chunks_are_those_of_llama(llm: Llama, options: dict[str, Any]) -> None:
    def told(chunks: list[dict[str, Any]]) -> list[Any]:
        return [(c["object"], c["choices"]) for c in chunks]

    given = OPTIONS | options
    want = told(list(llm("hello", stream=True, **given)))

    async def main() -> list[dict[str, Any]]:
        stream = await AsyncLlama(llm).create_completion("hello", stream=True, **given)
        return [chunk async for chunk in stream]

    assert told(run(main)) == want


def test_a_chat(llm: Llama) -> None:
    messages = [{"role": "user", "content": "hello"}]
    want = llm.create_chat_completion(messages, **OPTIONS)
    chunks = list(llm.create_chat_completion(messages, stream=True, **OPTIONS))

    async def main() -> None:
        many = AsyncLlama(llm)
        found = await many.create_chat_completion(messages, **OPTIONS)
        assert found["choices"] == want["choices"]
        stream = await many.create_chat_completion(messages, stream=True, **OPTIONS)
        assert [c["choices"] async for c in stream] == [c["choices"] for c in chunks]

    run(main)


def test_many_prompts_embeddings_and_scores(llm: Llama) -> None:
    want = [text_of(r) for r in llm.generate(PROMPTS, **OPTIONS)]
    embedded, scored = llm.embed(PROMPTS, pooling="mean"), llm.score(PROMPTS)

    async def main() -> None:
        many = AsyncLlama(llm)
        stream = await many.create_completion("beside it", stream=True, **ENDLESS)
        await anext(stream)
        assert [text_of(r) async for r in many.generate(PROMPTS, **OPTIONS)] == want
        np.testing.assert_array_equal(await many.embed(PROMPTS, pooling="mean"), embedded)
        assert await many.score(PROMPTS) == scored
        await stream.aclose()

    run(main)


def test_other_methods_of_llama(llm: Llama, long_path: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora.gguf", long_path, size=3.0).path
    tokens = llm.tokenize("hello world", special=True)
    asked = llm.request("hello", **OPTIONS)
    want = text_of(llm("hello", **OPTIONS))

    async def main() -> None:
        many = AsyncLlama(llm)
        stream = await many.create_completion("beside it", stream=True, **ENDLESS)
        await anext(stream)
        assert await many.tokenize("hello world", special=True) == tokens
        assert await many.detokenize(tokens) == llm.detokenize(tokens)
        assert text_of(await many("hello", **OPTIONS)) == want
        request = await many.request("hello", **OPTIONS)
        assert request.prompt == asked.prompt
        assert [text_of(r) async for r in many.generate([request])] == [want]
        lora = await many.load_lora(adapter, scale=1.0)
        assert list(llm.lora_adapters.values()) == [lora]
        assert text_of(await many("hello", **OPTIONS)) != want
        await many.unload_lora(lora)
        assert not llm.lora_adapters
        assert "n_ctx" in await many.describe()
        assert many.timings is llm.timings
        await stream.aclose()
        state = await many.save_state(tmp_path / "state")
        held = llm.held_tokens
        assert held
        await many.reset()
        assert not llm.held_tokens
        await many.load_state(state)
        assert llm.held_tokens == held
        with pytest.raises(FileError):
            await many.load_state(tmp_path / "other")

    run(main)


def test_the_loop_runs_meanwhile(llm: Llama) -> None:
    """A slow step does not stop other tasks, and waiting takes no time of the processor."""

    def slow(tokens: Any, logits: Any) -> Any:
        time.sleep(0.2)
        return logits

    async def main() -> None:
        many = AsyncLlama(llm)
        task = asyncio.create_task(
            many.create_completion("abc", logits_processor=slow, **OPTIONS | {"max_tokens": 3})
        )
        n_turns, spent = 0, time.process_time()
        while not task.done():
            await asyncio.sleep(0.01)
            n_turns += 1
        assert n_turns > 20
        assert time.process_time() - spent < 0.5
        assert task.result()["usage"]["completion_tokens"] == 3

    run(main)


@pytest.mark.parametrize("how", ["aclose", "cancel", "break", "timeout"])
def test_what_is_cancelled_leaves_the_engine(llm: Llama, how: str) -> None:
    async def reads(stream: Any) -> None:
        async for _ in stream:
            pass

    async def main() -> None:
        many = AsyncLlama(llm)
        other = asyncio.create_task(many.create_completion("abc", **OPTIONS))
        stream = await many.create_completion("hello", stream=True, **ENDLESS)
        if how == "aclose":
            await anext(stream)
            await stream.aclose()
        elif how == "break":
            async for _ in stream:
                break
            await stream.aclose()
        elif how == "cancel":
            task = asyncio.create_task(reads(stream))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(many.create_completion("hello", **ENDLESS), 0.05)
        assert text_of(await other) == text_of(alone)
        await until(lambda: not llm.engine.is_running)

    alone = llm("abc", **OPTIONS)
    run(main)
    assert text_of(llm("abc", **OPTIONS)) == text_of(alone)


def test_a_stream_that_is_forgotten(llm: Llama) -> None:
    async def main() -> None:
        stream = await AsyncLlama(llm).create_completion("hello", stream=True, **ENDLESS)
        await anext(stream)
        del stream
        gc.collect()
        await until(lambda: not llm.engine.is_running)

    run(main)


def test_what_is_not_read_never_runs(llm: Llama) -> None:
    async def main() -> None:
        stream = await AsyncLlama(llm).create_completion("hello", stream=True, **OPTIONS)
        await asyncio.sleep(0.05)
        assert not llm.engine.is_running
        await stream.aclose()

    run(main)


def test_errors_reach_their_task_only(llm: Llama) -> None:
    def fails(tokens: Any, logits: Any) -> Any:
        raise ZeroDivisionError

    async def main() -> None:
        many = AsyncLlama(llm)
        results = await asyncio.gather(
            many.create_completion("abc", logits_processor=fails, **OPTIONS),
            many.create_completion("abc", **OPTIONS),
            many.create_completion([10**9], **OPTIONS),
            many.create_completion("abc", **OPTIONS | {"temperature": "hot"}),
            return_exceptions=True,
        )
        assert isinstance(results[0], ZeroDivisionError)
        assert text_of(results[1]) == text_of(alone)  # type: ignore[arg-type]
        assert isinstance(results[2], BadBatch)
        assert isinstance(results[3], GgmlpyError)
        with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
            await many.create_completion("abc", temprature=1)  # type: ignore[call-overload]
        with pytest.raises(BadBatch, match=r"prompts\[1\]"):
            _ = [r async for r in many.generate(["a", [10**9]])]

    alone = llm("abc", **OPTIONS)
    run(main)


def test_an_error_of_a_step_ends_all_that_wait(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        many = AsyncLlama(llm)
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.context, "run_batch", lambda batch: 1 / 0)
            both = [many.create_completion(p, **OPTIONS) for p in ("abc", "q")]
            for found in await asyncio.gather(*both, return_exceptions=True):
                assert isinstance(found, ZeroDivisionError)
        assert await many.create_completion("abc", **OPTIONS)

    run(main)


@pytest.mark.parametrize("how", ["async", "sync", "reset"])
def test_closing_ends_tasks_that_wait(tiny_path: Path, how: str) -> None:
    async def main() -> None:
        many = await AsyncLlama.open(tiny_path, backend="reference", n_ctx=100, n_seq_max=1)
        tasks = [asyncio.create_task(many.create_completion(p, **ENDLESS)) for p in PROMPTS]
        await until(lambda: many.llama.engine.is_running)
        if how == "async":
            await many.close()
            assert not [t for t in threading.enumerate() if t.name.startswith("ggmlpy-async")]
        elif how == "sync":
            many.llama.close()
        else:
            many.llama.reset()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(found, dict):  # some may have been complete
                assert isinstance(found, GgmlpyError)
                assert "closed" in str(found)
        if how != "reset":
            with pytest.raises(GgmlpyError, match="closed"):
                await many.create_completion("abc")
            with pytest.raises(GgmlpyError, match="closed"):
                await many.embed("abc")
        await many.close()
        await many.close()

    run(main)


def test_beside_other_threads(llm: Llama) -> None:
    """Threads that read streams, and those that need the engine for themselves, get their turn."""
    want = text_of(llm("abc", **OPTIONS))
    found: list[str] = []

    def sync() -> None:
        for _ in range(5):
            found.append(text_of(llm("abc", **OPTIONS)))
            llm.embed("hello")
            assert isinstance(llm.held_tokens, dict)

    async def main() -> None:
        many = AsyncLlama(llm)
        stream = await many.create_completion("hello", stream=True, **ENDLESS)
        thread = threading.Thread(target=sync)
        n = 0
        async for _ in stream:
            if n == 0:
                thread.start()
            n += 1
            if not thread.is_alive():
                break
        await stream.aclose()
        await until(lambda: not thread.is_alive())

    run(main)
    assert found == [want] * 5


def test_two_loops_share_a_model(llm: Llama) -> None:
    many = AsyncLlama(llm)
    want = [text_of(llm(prompt, **OPTIONS)) for prompt in PROMPTS]
    found: dict[int, list[str]] = {}

    def other(number: int) -> None:
        async def main() -> None:
            results = (many.create_completion(p, **OPTIONS) for p in PROMPTS)
            found[number] = [text_of(r) for r in await asyncio.gather(*results)]

        asyncio.run(main())

    threads = [threading.Thread(target=other, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: want for i in range(3)}


def test_a_loop_that_ends_before_its_answers(llm: Llama) -> None:
    many = AsyncLlama(llm)
    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(many.create_completion("a", stream=True, **ENDLESS))
    loop.run_until_complete(anext(stream))
    loop.close()
    many.answers.join()
    assert not llm.engine.is_running


def test_opening(tiny_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(MissingFile):
            await AsyncLlama.open("no-such.gguf")
        told: list[str] = []
        with ggmlpy.listening(lambda what, share: told.append(what)):
            async with await AsyncLlama.open(tiny_path, backend="reference") as many:
                assert repr(many).startswith("AsyncLlama('tiny.gguf', llama")
                await many.score(["abc"])
        assert "scoring" in told
        assert repr(many) == "AsyncLlama('tiny.gguf', closed)"

    run(main)
    wrong: Any
    for wrong in (
        lambda: AsyncLlama(),
        lambda: AsyncLlama(tiny_path),  # type: ignore[arg-type]
        lambda: AsyncLlama(model_path=tiny_path, n_ctx=64),
    ):
        with pytest.raises(ArgumentError, match=r"it takes a Llama alone; await AsyncLlama\.open"):
            wrong()


def test_its_methods_are_those_of_llama() -> None:
    for name in (
        "create_completion",
        "create_chat_completion",
        "generate",
        "embed",
        "rank",
        "score",
        "request",
        "tokenize",
        "detokenize",
        "save_state",
        "load_state",
        "load_lora",
        "unload_lora",
        "reset",
        "describe",
    ):
        ours, theirs = (inspect.signature(getattr(c, name)) for c in (AsyncLlama, Llama))
        assert ours.parameters.keys() == theirs.parameters.keys(), name
        for key, parameter in ours.parameters.items():
            assert parameter.default == theirs.parameters[key].default, (name, key)
