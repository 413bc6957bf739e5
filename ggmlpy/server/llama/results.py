"""What llama-server tells of a completion: whole, or as the events of a stream."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.engine.completion import NO_CHUNK, NO_PIECE, text_of
from ggmlpy.engine.generation import Piece, Request, TokenLogprob
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.sampling import SamplingParams
from ggmlpy.server.events import event
from ggmlpy.server.generation import Generation, OwnForm
from ggmlpy.server.openai.results import progress_of, timings_of
from ggmlpy.text.tokenizer import Tokenizer

_RANDOM_SEED = 2**32 - 1  # llama.cpp's number for a seed that is not fixed
# Fields of `SamplingParams` that llama-server calls otherwise.
_NAMES = {"penalty_last_n": "repeat_last_n", "mirostat_mode": "mirostat"}
_PARAMS = (
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "typical_p", "penalty_last_n", "repeat_penalty",
    "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "mirostat_mode", "mirostat_tau", "mirostat_eta", "adaptive_target",
    "adaptive_decay", "min_keep",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of its result."""

    n_predict: int = -1  # -1: no limit
    n_probs: int = 0
    stream: bool = False
    return_tokens: bool = False
    ignore_eos: bool = False
    timings_per_token: bool = False
    post_sampling_probs: bool = False
    n_discard: int = 0
    grammar: str = ""
    response_fields: Sequence[str] = ()
    lora: Sequence[Mapping[str, Any]] = ()


def settings_of(
    params: SamplingParams, asked: Asked, stop: Sequence[str] = (), n_keep: int = 0
) -> dict[str, Any]:
    """llama-server's `generation_settings`."""
    biases = (params.logit_bias or {}).items()
    return {
        "seed": _RANDOM_SEED if params.seed is None else params.seed,
        **{_NAMES.get(name, name): getattr(params, name) for name in _PARAMS},
        "dry_sequence_breakers": list(params.dry_sequence_breakers),
        "samplers": list(params.samplers),
        "logit_bias": [
            {"token": token, "bias": bias if math.isfinite(bias) else None}
            for token, bias in biases
        ],
        "stop": list(stop),
        "max_tokens": asked.n_predict,
        "n_predict": asked.n_predict,
        "n_keep": n_keep,
        "n_discard": asked.n_discard,
        "ignore_eos": asked.ignore_eos,
        "stream": asked.stream,
        "n_probs": asked.n_probs,
        "grammar": asked.grammar,
        "timings_per_token": asked.timings_per_token,
        "post_sampling_probs": asked.post_sampling_probs,
        "lora": [dict(each) for each in asked.lora],
    }


class TimeLimit:
    """Ends an answer at the first new line so long after its first token, or later."""

    def __init__(self, limit_ms: float, tokenizer: Tokenizer, n_prompt: int) -> None:
        self.is_over = False
        self._limit_s = limit_ms / 1000
        self._tokenizer = tokenizer
        self._n_seen = n_prompt
        self._started_s = 0.0

    def __call__(self, tokens: Sequence[int], logits: NDArray[np.float32]) -> bool:
        new = tokens[self._n_seen :]
        self._n_seen = len(tokens)
        if not new:
            return False
        self._started_s = self._started_s or perf_counter()
        has_line = any(b"\n" in self._tokenizer.token_bytes(token) for token in new)
        self.is_over = has_line and perf_counter() - self._started_s > self._limit_s
        return self.is_over


@dataclass(eq=False, slots=True)
class CompletionForm(OwnForm):
    """One completion."""

    request: Request
    asked: Asked
    model: str
    tokenizer: Tokenizer
    n_ctx_seq: int
    limit: TimeLimit | None = None
    index: int = 0
    _n: int = field(default=0, init=False)  # tokens until now
    _has_line: bool = field(default=False, init=False)

    def chunks(self, pieces: Iterator[Piece]) -> Generator[dict[str, Any], None, None]:
        for piece in pieces:
            if piece is NO_PIECE:
                yield NO_CHUNK
                continue
            self._note(piece)
            if piece.progress is not None:
                yield self._part(piece) | {"prompt_progress": progress_of(piece.progress)}
            elif piece.token is not None or piece.text:
                yield self._part(piece)
            if piece.finish_reason is not None:
                yield self._whole([piece], "", [])

    def result(self, pieces: Iterator[Piece]) -> dict[str, Any]:
        found = list(pieces)
        for piece in found:
            self._note(piece)
        made = [each.token for each in found if each.token is not None]
        tokens = made if self.asked.return_tokens else []
        return self._whole(found, "".join(each.text for each in found), tokens)

    def _note(self, piece: Piece) -> None:
        self._n += piece.token is not None
        self._has_line = self._has_line or "\n" in piece.text

    def _part(self, piece: Piece) -> dict[str, Any]:
        made: dict[str, Any] = {
            "index": self.index,
            "content": piece.text,
            "tokens": [] if piece.token is None else [piece.token],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._n,
            "tokens_evaluated": len(self.request.prompt),
        }
        if piece.logprobs:
            made["completion_probabilities"] = [self._probabilities(p) for p in piece.logprobs]
        if piece.timings is not None and self.asked.timings_per_token:
            made["timings"] = timings_of(piece.timings)
        return made

    def _whole(self, pieces: list[Piece], content: str, tokens: list[int]) -> dict[str, Any]:
        timings, n_prompt = pieces[-1].timings or AnswerTimings(), len(self.request.prompt)
        kind = self._stop_type(pieces[-1], timings)
        made: dict[str, Any] = {
            "index": self.index,
            "content": content,
            "tokens": tokens,
            "id_slot": timings.seq,
            "stop": True,
            "model": self.model,
            "tokens_predicted": self._n,
            "tokens_evaluated": n_prompt,
            "generation_settings": settings_of(
                self.request.sampling, self.asked, self.request.stop, self.request.n_keep
            ),
            "prompt": self.tokenizer.decode(self.request.prompt, special=True),
            "has_new_line": self._has_line,
            "truncated": n_prompt + self._n > self.n_ctx_seq or self._is_cut(kind),
            "stop_type": kind,
            "stopping_word": timings.stop or "",
            "tokens_cached": n_prompt + max(0, self._n - (kind != "eos")),
            "timings": timings_of(timings),
        }
        found = [each for piece in pieces for each in piece.logprobs]
        if found and not self.asked.stream:
            made["completion_probabilities"] = [self._probabilities(each) for each in found]
        wanted = self.asked.response_fields
        return _picked(made, wanted) if wanted else made

    def _stop_type(self, last: Piece, timings: AnswerTimings) -> str:
        if timings.stop:
            return "word"
        if timings.stop == "":  # the indentation of a line
            return "limit"
        if last.finish_reason == "length" or (self.limit is not None and self.limit.is_over):
            return "limit"
        return "eos"

    def _is_cut(self, kind: str) -> bool:
        """Whether the context has ended the answer."""
        n, most = self._n, self.asked.n_predict
        return kind == "limit" and (most == -1 or n < most) and not (self.limit or most == 0)

    def _probabilities(self, scored: TokenLogprob) -> dict[str, Any]:
        top = [self._entry(token, value) for token, value in scored.top.items()]
        name = "top_probs" if self.asked.post_sampling_probs else "top_logprobs"
        return {**self._entry(scored.token, scored.logprob), name: top}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.token_bytes(token, special=True)
        is_drawn = self.asked.post_sampling_probs
        return {
            "id": token,
            "token": text_of(self.tokenizer, token),
            "bytes": list(raw),
            **({"prob": math.exp(logprob)} if is_drawn else {"logprob": logprob}),
        }


def _picked(made: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Fields by their paths, as "generation_settings/top_k"; those that there are not are left
    out."""
    found = {}
    for path in paths:
        value: Any = made
        for name in path.split("/"):
            value = value.get(name, _picked) if isinstance(value, Mapping) else _picked
        if value is not _picked:
            found[path] = value
    return found


async def events(generation: Generation) -> AsyncGenerator[bytes, None]:
    """The events of all choices. There is no [DONE]: the last event of each has `stop`."""
    async for arrived in generation.chunks():
        yield b"".join(event(chunk) for _, chunk in arrived)
