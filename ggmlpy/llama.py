"""`Llama`: a model file with everything needed to write text, as llama-cpp-python users know it."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from threading import RLock
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.chat import ChatTemplate
from ggmlpy.completion import ChatForm, TextForm, collect
from ggmlpy.compute import backends_for
from ggmlpy.context import Context
from ggmlpy.engine import Engine
from ggmlpy.errors import BadBatch, GgmlpyError
from ggmlpy.generation import LogitsProcessor, Piece, Request
from ggmlpy.gguf_file import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.sampling import SamplingParams
from ggmlpy.timings import Timings
from ggmlpy.tokenizer import Tokenizer
from ggmlpy.types import type_of


class ContextWarning(UserWarning):
    """More context was asked for than the model was trained with."""


class Llama:
    """A GGUF model ready to generate.

    `n_ctx` tokens fit in the context, 0 for what the model was trained with; prompts run in pieces
    of `n_ubatch`. `type_k` and `type_v` are the KV cache's types, `flash_attn=False` computes
    attention step by step. `n_gpu_layers` is for backends with memory of their own. Raises
    FileError, Unsupported or BackendError, each with what is wrong and what must be.

    May be used from several threads: what they ask for runs together, as sequences allow.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        kv_unified: bool = False,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: bool = True,
        backend: str = "auto",
        n_threads: int | None = None,
        n_gpu_layers: int = -1,
        seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        started = perf_counter()
        for name, value, least in (
            ("n_ctx", n_ctx, 0),
            ("n_batch", n_batch, 1),
            ("n_ubatch", n_ubatch, 1),
        ):
            if value < least:
                raise BadBatch(f"{name} is {value}: it must be at least {least}")
        self.model_path = str(model_path)
        self.verbose = verbose
        self.seed = seed
        self._file = GGUFFile.open(model_path)
        self.metadata = self._file.metadata
        self.model = load_model(self._file)
        self.tokenizer = Tokenizer.from_metadata(self.metadata, self._file.path.name)
        self._context = Context(
            self.model,
            backends_for(backend, n_threads),
            n_ctx=self._choose_n_ctx(n_ctx, n_seq_max, kv_unified),
            n_ubatch=min(n_ubatch, n_batch),
            n_seq_max=n_seq_max,
            kv_unified=kv_unified,
            type_k=type_of(type_k),
            type_v=type_of(type_v),
            flash_attn=flash_attn,
        )
        self.engine = Engine(self._context, self.tokenizer)
        self._lock = RLock()  # one step at a time, whichever thread it runs on
        self._pieces: dict[
            int, deque[Piece | Exception]
        ] = {}  # made, but not yet asked for, by request
        self._chat_template: ChatTemplate | None = None
        self._context.warm_up()
        self.load_s = perf_counter() - started
        if verbose:
            print(self.describe(), file=sys.stderr)

    def _choose_n_ctx(self, n_ctx: int, n_seq_max: int, kv_unified: bool) -> int:
        trained = self.model.hparams.n_ctx_train
        for_one = n_ctx if kv_unified else n_ctx // max(1, n_seq_max)
        if n_ctx and for_one > trained:
            warnings.warn(
                f"n_ctx is {for_one}, the model was trained with {trained}:"
                " text beyond that may not make sense",
                ContextWarning,
                stacklevel=3,
            )
        return n_ctx or trained

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence may have."""
        return self._context.sizes.n_ctx_seq

    @property
    def n_vocab(self) -> int:
        return self.model.hparams.n_vocab

    @property
    def n_plans_built(self) -> int:
        """Graphs built and planned so far; steps of a shape seen before add none."""
        return self._context.n_plans_built

    def describe(self) -> str:
        """What was loaded and decided, a line each."""
        h, memory = self.model.hparams, self._context.memory
        cache = memory.caches[0]
        weight_bytes = sum(t.n_bytes for t in self._file.tensors.values())
        return "\n".join(
            [
                f"model    {Path(self.model_path).name}: {h.architecture}, {h.n_layer} layers,"
                f" {weight_bytes / 1e6:.1f} MB of weights",
                f"context  {self.n_ctx} tokens (trained with {h.n_ctx_train}),"
                f" KV cache {memory.n_bytes / 1e6:.1f} MB ({cache.type_k}/{cache.type_v})",
                f"compute  {self._context.compute_bytes / 1e6:.1f} MB on"
                f" {self._context.backend_names}, loaded in {self.load_s:.2f} s",
            ]
        )

    @property
    def timings(self) -> Timings:
        """Of what ran since the engine was last idle."""
        return self.engine.timings

    def tokenize(self, text: str, add_bos: bool = True, special: bool = False) -> list[int]:
        """The text's token ids. `special` parses control tokens written in the text."""
        return self.tokenizer.encode(text, add_bos=add_bos, special=special)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of token ids; control tokens are left out unless `special`."""
        return self.tokenizer.decode(tokens, special=special)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits of a fresh sequence at every token: [n_tokens, n_vocab]. Resets the model."""
        with self._lock:
            self.reset()
            logits = self._context.decode(tokens, all_logits=True).copy()
            self.reset()
        return logits

    def reset(self) -> None:
        """Forget what the KV cache holds, and end what is being written.

        Never changes a later result, only what has to be run again.
        """
        with self._lock:
            self.engine.reset()
            self._pieces.clear()

    def close(self) -> None:
        """Let go of the file. The model must not be used afterwards."""
        self._file.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Any
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Text after `prompt`: llama-cpp-python's completion dict, or with `stream` its chunks.

        Options, with llama-cpp-python's names and defaults:

            max_tokens=16             None or below 1: until the context is full
            temperature=0.8           0 always takes the likeliest token
            top_k=40, top_p=0.95, min_p=0.05, typical_p=1.0
            repeat_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0
            logit_bias=None           {token: added to its logit}
            logits_processor=None     f(tokens, logits) -> logits
            seed=None                 the model's seed, or a fresh one
            stop=None                 a string, or several, that end the text before them
            logprobs=None             how many likeliest tokens to tell of each token
            echo=False                put the prompt before the text
            model=None                the name to give in the result

        Raises BadBatch for a prompt that does not fit the context, SamplingError for an option out
        of its range.
        """
        request, form = self._text_request(prompt, **options)
        return self._complete(request, form, stream)

    def _text_request(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 16,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        model: str | None = None,
        logits_processor: LogitsProcessor | None = None,
        **sampling: Any,
    ) -> tuple[Request, TextForm]:
        tokens = self._prompt_tokens(prompt)
        request = self._request(
            tokens, max_tokens, sampling, _as_list(stop), logprobs, logits_processor
        )
        shown = ""
        if echo:
            shown = prompt if isinstance(prompt, str) else self.detokenize(prompt)
        return request, TextForm(model or self.model_path, self.tokenizer, len(tokens), echo=shown)

    def __call__(self, prompt: str | Sequence[int], **options: Any) -> Any:
        """`create_completion`."""
        return self.create_completion(prompt, **options)

    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        model: str | None = None,
        logprobs: bool = False,
        top_logprobs: int | None = None,
        logits_processor: LogitsProcessor | None = None,
        temperature: float = 0.2,
        **sampling: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """The assistant's answer to `messages`, by the file's chat template.

        `sampling` is as for `create_completion`. Raises TemplateError for messages or a template
        that do not render, and what `create_completion` raises.
        """
        template = self.chat_template
        # A model's own template writes its BOS: one more would change what the model sees.
        prompt = template.render(list(messages))
        tokens = self.tokenizer.encode(prompt, add_bos=template.is_default, special=True)
        stops = [*_as_list(stop), *template.stops()]
        n_top = (top_logprobs or 0) if logprobs else None
        options = {"temperature": temperature, **sampling}
        request = self._request(tokens, max_tokens, options, stops, n_top, logits_processor)
        form = ChatForm(model or self.model_path, self.tokenizer, len(tokens))
        return self._complete(request, form, stream)

    def generate(
        self, prompts: Iterable[str | Sequence[int]], **options: Any
    ) -> Iterator[dict[str, Any]]:
        """Completions of many prompts, run together on up to `n_seq_max` sequences.

        Yields the dicts of `create_completion` in the order of the prompts, each as soon as it and
        those before it are done; `options` are its options, for every prompt. Each text is the one
        that its prompt gets alone. Raises what `create_completion` raises, before anything runs.
        """
        if isinstance(prompts, str | bytes):
            raise TypeError("prompts is one text: pass a list of texts")
        asked = [self._text_request(prompt, **options) for prompt in prompts]
        for request, _ in asked:
            self.engine.check(request)
        return self._collect_all(asked)

    def _collect_all(self, asked: list[tuple[Request, TextForm]]) -> Iterator[dict[str, Any]]:
        ids: list[int] = []
        try:
            for request, _ in asked:
                ids.append(self._start(request))
            for id, (_, form) in zip(ids, asked, strict=True):
                yield collect(self._pieces_of(id), form)
        finally:  # all done, or left early
            for id in ids:
                self._drop(id)

    @property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template, or a plain one where it has none. Raises TemplateError."""
        if self._chat_template is None:
            self._chat_template = ChatTemplate.from_metadata(self.metadata)
        return self._chat_template

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt, add_bos=True, special=True)
        elif isinstance(prompt, Sequence | np.ndarray) and not isinstance(
            prompt, bytes | bytearray
        ):
            tokens = [int(token) for token in prompt]
        else:
            raise TypeError(f"a prompt is a string or token ids, not {type(prompt).__name__}")
        if not tokens:  # a file without BOS, and nothing to start from
            raise BadBatch("the prompt is empty, and this vocabulary has no token to begin with")
        return tokens

    def _request(
        self,
        tokens: list[int],
        max_tokens: int | None,
        sampling: dict[str, Any],
        stop: Sequence[str],
        n_top_logprobs: int | None,
        logits_processor: LogitsProcessor | None,
    ) -> Request:
        if sampling.get("seed") is None:
            sampling = {**sampling, "seed": self.seed}
        unknown = set(sampling) - {field.name for field in fields(SamplingParams)}
        if unknown:
            raise TypeError(f"unknown option {', '.join(sorted(unknown))}")
        room = self.n_ctx - len(tokens) + 1  # the last token need not be run
        wanted = room if max_tokens is None or max_tokens < 1 else min(max_tokens, room)
        return Request(
            tokens, wanted, SamplingParams(**sampling), stop, n_top_logprobs, logits_processor
        )

    def _complete(
        self, request: Request, form: TextForm | ChatForm, stream: bool
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        self.engine.check(request)
        pieces = self._follow(request)
        if stream:
            return form.chunks(pieces)
        result: dict[str, Any] = collect(pieces, form)
        if self.verbose:
            print(self.timings, file=sys.stderr)
        return result

    def _start(self, request: Request) -> int:
        with self._lock:
            if not self.engine.has_work:
                self.engine.timings = Timings(load_s=self.load_s)
            id = self.engine.add(request)
            self._pieces[id] = deque()
        return id

    def _follow(self, request: Request) -> Iterator[Piece]:
        """The pieces of a request, which starts when the first is asked for."""
        yield from self._pieces_of(self._start(request))

    def _pieces_of(self, id: int) -> Iterator[Piece]:
        """The pieces of one request. Steps that this takes bring the others forward too."""
        try:
            while True:
                with self._lock:
                    piece = self._next_piece(id)
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.finish_reason is not None:
                    return
        finally:  # read to the end, or left early
            self._drop(id)

    def _next_piece(self, id: int) -> Piece | Exception:
        while id in self._pieces:
            if self._pieces[id]:
                return self._pieces[id].popleft()
            if not self.engine.has_work:
                break
            for output in self.engine.step():
                if output.id in self._pieces:
                    self._pieces[output.id].append(output.piece)
        raise GgmlpyError("the text cannot go on: the model was reset while it was written")

    def _drop(self, id: int) -> None:
        with self._lock:
            self.engine.cancel(id)
            self._pieces.pop(id, None)


def _as_list(stop: str | Sequence[str] | None) -> list[str]:
    if stop is None:
        return []
    return [stop] if isinstance(stop, str) else list(stop)
