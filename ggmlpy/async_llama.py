"""`AsyncLlama`: a model for the tasks of an event loop.

async with await AsyncLlama.open("model.gguf", n_seq_max=8) as llm:
    result = await llm.create_completion("Once upon a time")
    async for chunk in await llm.create_completion("Once upon a time", stream=True):
        print(chunk["choices"][0]["text"], end="")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextvars import copy_context
from os import PathLike
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from ggmlpy.common import log
from ggmlpy.common.limits import starting_threads
from ggmlpy.engine.async_answers import AsyncAnswers
from ggmlpy.engine.completion import ChatForm, TextForm, collect
from ggmlpy.engine.embedding_methods import Text
from ggmlpy.engine.embeddings import Vector
from ggmlpy.engine.generation import Prompt, Request
from ggmlpy.engine.options import ChatOptions, CompletionOptions, RequestOptions, keywords
from ggmlpy.engine.scoring import Score
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import ArgumentError
from ggmlpy.llama import Llama
from ggmlpy.memory.llama_state import LlamaState
from ggmlpy.models.lora import LoraAdapter

Result = TypeVar("Result")
AsyncChunks = AsyncGenerator[dict[str, Any], None]


class AsyncLlama:
    """A model for tasks: the methods of `Llama` to be awaited, with the same options and errors.

    Requests of all tasks run together, as far as sequences allow (`n_seq_max`), on one thread that
    exists while any is pending. Cancelling a task, or closing a stream before its end, cancels its
    request at the end of the current step. Functions such as a logits_processor are called in that
    thread. Several event loops, and threads that use the same `Llama`, may share a model.
    """

    def __init__(self, llama: Llama | None = None, **options: Any) -> None:
        """Of a loaded model. Closing either closes both. Raises ArgumentError for anything else,
        such as a path with options, which `open` takes."""
        if not isinstance(llama, Llama) or options:
            given = [] if llama is None else [f"{llama!r:.80}"]
            given += [f"{name}={value!r:.80}" for name, value in options.items()]
            raise ArgumentError(
                f"AsyncLlama({', '.join(given)}): it takes a Llama alone; await"
                " AsyncLlama.open(path, …) loads one"
            )
        self.llama = llama
        self.answers = AsyncAnswers(llama._answers)

    @classmethod
    async def open(cls, model_path: str | PathLike[str], **options: Any) -> Self:
        """Load a model as `Llama(model_path, **options)` does; the loop runs meanwhile."""
        return cls(await _in_thread(lambda: Llama(model_path, **options)))

    @classmethod
    async def from_pretrained(cls, repo_id: str, *args: Any, **options: Any) -> Self:
        """Load a model as `Llama.from_pretrained` does; the loop runs meanwhile."""
        return cls(await _in_thread(lambda: Llama.from_pretrained(repo_id, *args, **options)))

    @overload
    async def create_completion(
        self,
        prompt: Prompt,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CompletionOptions],
    ) -> dict[str, Any]: ...
    @overload
    async def create_completion(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[CompletionOptions]
    ) -> AsyncChunks: ...
    @overload
    async def create_completion(
        self, prompt: Prompt, *, stream: bool, **options: Unpack[CompletionOptions]
    ) -> dict[str, Any] | AsyncChunks: ...
    @keywords(CompletionOptions)
    async def create_completion(
        self, prompt: Prompt, *, stream: bool = False, **options: Unpack[CompletionOptions]
    ) -> dict[str, Any] | AsyncChunks:
        """As `Llama.create_completion`. With `stream` what is awaited are chunks for `async for`,
        whose request starts when the first is asked for."""
        made = await self.answers.do(lambda: self.llama.prepare_completion(prompt, **options))
        return await self._complete(*made, stream)

    __call__ = create_completion

    @keywords(RequestOptions)
    async def request(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Request:
        """As `Llama.request`, for `generate`."""
        return await self.answers.do(lambda: self.llama.request(prompt, **options))

    @overload
    async def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[ChatOptions],
    ) -> dict[str, Any]: ...
    @overload
    async def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> AsyncChunks: ...
    @overload
    async def create_chat_completion(
        self, messages: Sequence[dict[str, Any]], *, stream: bool, **options: Unpack[ChatOptions]
    ) -> dict[str, Any] | AsyncChunks: ...
    @keywords(ChatOptions, temperature=0.2, max_tokens=None, logprobs=False)
    async def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> dict[str, Any] | AsyncChunks:
        """As `Llama.create_chat_completion`; with `stream` as `create_completion`."""
        made = await self.answers.do(
            lambda: self.llama.prepare_chat_completion(messages, **options)
        )
        return await self._complete(*made, stream)

    @keywords(CompletionOptions)
    async def generate(
        self, prompts: Iterable[Prompt | Request], **options: Unpack[CompletionOptions]
    ) -> AsyncChunks:
        """As `Llama.generate`: for `async for`, the results in the order of the prompts."""
        if isinstance(prompts, str | bytes):
            raise ArgumentError("generate: prompts is one text: it must be a list of texts")
        listed = list(prompts)
        made = await self.answers.do(lambda: self.llama._all_requests(listed, options))
        answers = self.answers.collect_all([request for request, _ in made])
        try:
            i = 0
            async for pieces in answers:
                yield collect(iter(pieces), made[i][1])
                i += 1
        finally:
            await answers.aclose()

    async def embed(
        self,
        texts: str | bytes | Sequence[Text],
        *,
        pooling: str | None = None,
        normalize: bool = True,
    ) -> Vector | list[Vector]:
        """As `Llama.embed`."""
        given: Any = texts
        return await self.answers.do(
            lambda: self.llama.embed(given, pooling=pooling, normalize=normalize)
        )

    async def rank(self, query: str | bytes, documents: Sequence[str | bytes]) -> list[float]:
        """As `Llama.rank`."""
        return await self.answers.do(lambda: self.llama.rank(query, documents))

    async def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Sequence[Prompt] | None = None,
    ) -> list[Score]:
        """As `Llama.score`."""
        return await self.answers.do(lambda: self.llama.score(prompts, continuations))

    async def tokenize(
        self, text: str | bytes, add_bos: bool = True, special: bool = False
    ) -> list[int]:
        """As `Llama.tokenize`."""
        return await _in_thread(lambda: self.llama.tokenize(text, add_bos, special))

    async def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        """As `Llama.detokenize`."""
        return await _in_thread(lambda: self.llama.detokenize(tokens, special))

    async def save_state(
        self, path: str | Path | None = None, *, seq: int | None = None
    ) -> LlamaState:
        """As `Llama.save_state`, between two steps."""
        return await _in_thread(lambda: self.llama.save_state(path, seq=seq))

    async def load_state(
        self, state: LlamaState | bytes | str | Path, *, seq: int | None = None
    ) -> None:
        """As `Llama.load_state`."""
        await _in_thread(lambda: self.llama.load_state(state, seq=seq))

    async def reset(self) -> None:
        """As `Llama.reset`: tasks whose requests run get GgmlpyError."""
        await _in_thread(self.llama.reset)

    async def load_lora(self, path: str | bytes | PathLike[str], scale: float = 1.0) -> LoraAdapter:
        """As `Llama.load_lora`."""
        return await _in_thread(lambda: self.llama.load_lora(path, scale))

    async def unload_lora(self, adapter: LoraAdapter) -> None:
        """As `Llama.unload_lora`."""
        await _in_thread(lambda: self.llama.unload_lora(adapter))

    async def describe(self) -> str:
        """As `Llama.describe`."""
        return await _in_thread(self.llama.describe)

    @property
    def timings(self) -> Timings:
        """As `Llama.timings`: not awaited."""
        return self.llama.timings

    async def close(self) -> None:
        """End all requests, whose tasks get GgmlpyError, and give the memory back."""

        def close() -> None:
            self.llama.close()
            self.answers.join()

        await asyncio.shield(asyncio.ensure_future(_in_thread(close)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self.llama!r}"

    async def _complete(
        self, request: Request, form: TextForm | ChatForm, stream: bool
    ) -> dict[str, Any] | AsyncChunks:
        if stream:
            return self.answers.chunks(request, form)
        answers = self.answers.collect_all([request])
        try:
            async for pieces in answers:
                result: dict[str, Any] = collect(iter(pieces), form)
            log.show(str(self.llama.timings), printed=self.llama.verbose)
            return result
        finally:
            await answers.aclose()


async def _in_thread(function: Callable[[], Result]) -> Result:
    """The result of a function that blocks, from a thread that ends with it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: list[Result], error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result[0])

    context = copy_context()

    def run() -> None:
        result: list[Result] = []
        failed: BaseException | None = None
        try:
            result.append(context.run(function))
        except BaseException as error:
            failed = error
        loop.call_soon_threadsafe(settle, result, failed)

    thread = Thread(target=run, name="ggmlpy-async-call")
    with starting_threads():
        thread.start()
    try:
        return await future
    finally:
        if future.done() and not future.cancelled():
            thread.join()  # it is at its end
