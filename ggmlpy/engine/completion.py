"""Results as llama-cpp-python's dicts, which are OpenAI's: whole, or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ggmlpy.engine.generation import Piece, Progress, TokenLogprob
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.tools import AnswerParser, Delta, Message

# A piece that has not come yet, where it cannot be waited for: `chunks` yields NO_CHUNK for it.
NO_PIECE = Piece("")
NO_CHUNK: dict[str, Any] = {}


class Form(Protocol):
    """The form of a whole result. `logprobs` are of scored prompt tokens, then of new ones."""

    @property
    def shows_end(self) -> bool: ...

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> Any: ...


class _Envelope:
    """The fields that all dicts of one answer share: id, time, model."""

    def __init__(self, prefix: str, model: str, tokenizer: Tokenizer, n_prompt: int) -> None:
        self._id = f"{prefix}-{uuid.uuid4()}"
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._n_prompt = n_prompt

    def _wrap(self, object_name: str, choice: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": object_name,
            "created": self._created,
            "model": self._model,
            "choices": [choice],
        }

    def _usage(self, n_decoded: int) -> dict[str, int]:
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": n_decoded,
            "total_tokens": self._n_prompt + n_decoded,
        }


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt with which the text of a result begins."""

    text: str
    tokens: list[int]
    hides_bos: bool  # a BOS that was added to the text is not reported
    special: bool  # whether the text has control tokens
    is_scored: bool  # whether log-probabilities of its tokens come with the pieces


class TextForm(_Envelope):
    """`text_completion`."""

    def __init__(
        self, model: str, tokenizer: Tokenizer, n_prompt: int, *, echo: Echo | None = None
    ) -> None:
        super().__init__("cmpl", model, tokenizer, n_prompt)
        self._echo = echo

    @property
    def shows_end(self) -> bool:
        """Whether an EOG token is reported too: behind a prompt that is scored, as evaluation tools
        take the last of the tokens for the one that was generated."""
        return self._echo is not None and self._echo.is_scored

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> dict[str, Any]:
        entries, start, echo = [], 0, self._echo
        if echo is not None:
            text, start = echo.text + text, len(echo.text)
            if echo.is_scored:
                n = len(echo.tokens) - 1
                entries = _EchoedTokens(echo, self._tokenizer).take(logprobs[:n], ends=True)[1]
                logprobs = logprobs[n:]
        entries += _NewTokens(start, self._tokenizer).take(logprobs)
        choice = self._choice(text, entries, reason)
        return {**self._wrap("text_completion", choice), "usage": self._usage(n_decoded)}

    def chunks(self, pieces: Iterator[Piece]) -> Generator[dict[str, Any], None, None]:
        echo = self._echo
        new = _NewTokens(0 if echo is None else len(echo.text), self._tokenizer)
        echoed = _EchoedTokens(echo, self._tokenizer) if echo and echo.is_scored else None
        if echo is not None and echoed is None and echo.text:
            yield self._wrap("text_completion", self._choice(echo.text, [], None))
        for piece in pieces:
            if piece is NO_PIECE:
                yield NO_CHUNK
                continue
            if piece.progress is not None:
                chunk = self._wrap("text_completion", self._choice("", [], None))
                yield chunk | {"prompt_progress": piece.progress}
                continue
            is_answer = piece.token is not None or piece.finish_reason is not None
            if echoed is not None:
                text, entries = echoed.take(piece.prompt_logprobs, ends=is_answer)
                if text or entries:
                    yield self._wrap("text_completion", self._choice(text, entries, None))
            if is_answer:
                entries = new.take(_logprobs_of(piece, self.shows_end))
                choice = self._choice(piece.text, entries, piece.finish_reason)
                yield self._wrap("text_completion", choice)

    def _choice(self, text: str, entries: list[_Entry], reason: str | None) -> dict[str, Any]:
        shown = _as_lists(entries) if entries else None
        return {"text": text, "index": 0, "logprobs": shown, "finish_reason": reason}


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a text completion reports of a token."""

    text: str
    offset: int  # of it in the whole text, in characters
    logprob: float | None
    top: dict[str, float] | None  # of the most likely tokens, and of this one

    @classmethod
    def of(cls, scored: TokenLogprob, offset: int, tokenizer: Tokenizer) -> _Entry:
        text = text_of(tokenizer, scored.token)
        top: dict[str, float] = {}
        for token, value in [*scored.top.items(), (scored.token, scored.logprob)]:
            top.setdefault(text_of(tokenizer, token), value)  # the first is the most likely
        return cls(text, offset, scored.logprob, top)


def _as_lists(entries: list[_Entry]) -> dict[str, Any]:
    return {
        "tokens": [entry.text for entry in entries],
        "text_offset": [entry.offset for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [entry.top for entry in entries],
    }


class _NewTokens:
    """Where generated tokens lie in the text: behind `start` characters."""

    def __init__(self, start: int, tokenizer: Tokenizer) -> None:
        self._at = start
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream(start=False)

    def take(self, logprobs: Sequence[TokenLogprob]) -> list[_Entry]:
        """What is reported of the next tokens."""
        entries = []
        for scored in logprobs:
            entries.append(_Entry.of(scored, self._at, self._tokenizer))
            self._at += len(self._stream.push(scored.token))
        return entries


class _EchoedTokens:
    """Where the tokens of a prompt lie in its text."""

    def __init__(self, echo: Echo, tokenizer: Tokenizer) -> None:
        self._echo = echo
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream(echo.special)
        self._at = 0
        self._is_first = True  # whether no token was reported yet

    def take(self, logprobs: Sequence[TokenLogprob], *, ends: bool) -> tuple[str, list[_Entry]]:
        """The next tokens' text, and what is reported of them: of the first one that it is there.

        `ends`: no others of the prompt follow, so the text goes to its end.
        """
        start, entries, echo = self._at, [], self._echo
        if self._is_first and (logprobs or ends):
            if not echo.hides_bos:
                entries.append(self._unscored(echo.tokens[0]))
            elif logprobs:
                entries.append(self._unscored(logprobs[0].token))
                logprobs = logprobs[1:]
            self._is_first = False
        for scored in logprobs:
            entries.append(_Entry.of(scored, self._at, self._tokenizer))
            self._advance(scored.token)
        if ends:
            self._at = len(echo.text)
        return echo.text[start : self._at], entries

    def _unscored(self, token: int) -> _Entry:
        entry = _Entry(text_of(self._tokenizer, token), self._at, None, None)
        if token != self._tokenizer.bos_id or self._echo.hides_bos:  # as in `decode_prompt`
            self._advance(token)
        return entry

    def _advance(self, token: int) -> None:
        """Go on behind a token, whose text may be spelt with a space that the prompt lacks."""
        text, piece = self._echo.text, self._stream.push(token)
        if not text.startswith(piece, self._at) and text.startswith(piece[1:], self._at):
            piece = piece[1:] if piece[:1] == " " else piece
        self._at = min(self._at + len(piece), len(text))


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token by itself."""
    return tokenizer.decode([token], special=True, start=False)


@dataclass(frozen=True, slots=True)
class ChatPart:
    """What a piece adds to a message, and why the message ends, if it does."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    timings: AnswerTimings | None = None  # of the last one, and of others where they have some
    progress: Progress | None = None


NO_PART = ChatPart()  # for NO_PIECE


class ChatForm(_Envelope):
    """`chat.completion`."""

    shows_end = False

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        n_prompt: int,
        parser: AnswerParser | None = None,
    ) -> None:
        """`parser` finds reasoning and calls in the text; None: all of it is content."""
        super().__init__("chatcmpl", model, tokenizer, n_prompt)
        self._parser = parser

    def whole(
        self, text: str, logprobs: list[TokenLogprob], reason: str, n_decoded: int
    ) -> dict[str, Any]:
        deltas = [Delta(content=text)]
        if self._parser is not None:
            deltas = [*self._parser.push(text), *self._parser.finish()]
        message = Message.of(deltas).as_dict()
        choice = self._choice("message", message, logprobs, self._reason(reason))
        return {**self._wrap("chat.completion", choice), "usage": self._usage(n_decoded)}

    def chunks(self, pieces: Iterator[Piece]) -> Generator[dict[str, Any], None, None]:
        name = "chat.completion.chunk"
        yield self._wrap(name, self._choice("delta", {"role": "assistant"}, [], None))
        for part in self.parts(pieces):
            if part is NO_PART:
                yield NO_CHUNK
                continue
            if part.progress is not None:
                chunk = self._wrap(name, self._choice("delta", {}, [], None))
                yield chunk | {"prompt_progress": part.progress}
            logprobs = part.logprobs
            for delta in part.deltas:
                yield self._wrap(name, self._choice("delta", delta.as_dict(), logprobs, None))
                logprobs = []
            if part.finish_reason is not None:
                yield self._wrap(name, self._choice("delta", {}, [], part.finish_reason))

    def parts(self, pieces: Iterator[Piece]) -> Generator[ChatPart, None, None]:
        """Content, reasoning and calls of a message as they come, for APIs with other dicts: one
        part for each piece."""
        for piece in pieces:
            if piece is NO_PIECE:
                yield NO_PART
                continue
            deltas, reason = self._deltas(piece), piece.finish_reason
            shown = None if reason is None else self._reason(reason)
            yield ChatPart(deltas, piece.logprobs, shown, piece.timings, piece.progress)

    def _deltas(self, piece: Piece) -> list[Delta]:
        """What a piece adds to the message: at least one delta where it has log-probabilities."""
        if self._parser is None:
            deltas = [Delta(content=piece.text)] if piece.text else []
        else:
            deltas = self._parser.push(piece.text) if piece.text else []
            if piece.finish_reason is not None:
                deltas += self._parser.finish()
        return deltas or ([Delta()] if piece.logprobs else [])

    def _reason(self, reason: str) -> str:
        """Why the answer ended: with calls of tools, where it did not end before."""
        calls = self._parser is not None and self._parser.n_calls
        return "tool_calls" if calls and reason == "stop" else reason

    def _choice(
        self, key: str, value: dict[str, Any], logprobs: list[TokenLogprob], reason: str | None
    ) -> dict[str, Any]:
        shown = {"content": [self.scored(each) for each in logprobs]} if logprobs else None
        return {"index": 0, key: value, "logprobs": shown, "finish_reason": reason}

    def scored(self, logprob: TokenLogprob) -> dict[str, Any]:
        """What is reported of a token's log-probability."""
        top = [self._entry(token, value) for token, value in logprob.top.items()]
        return {**self._entry(logprob.token, logprob.logprob), "top_logprobs": top}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token, special=True)
        return {"token": text_of(self._tokenizer, token), "logprob": value, "bytes": list(raw)}


def _logprobs_of(piece: Piece, shows_end: bool) -> list[TokenLogprob]:
    """Those of new tokens."""
    if not shows_end or piece.end_logprob is None:
        return piece.logprobs
    return [*piece.logprobs, piece.end_logprob]


def collect(pieces: Iterator[Piece], form: Form) -> Any:
    """The whole result; runs the request to its end."""
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    n_decoded, reason = 0, "length"
    for piece in pieces:
        text.append(piece.text)
        logprobs += [*piece.prompt_logprobs, *_logprobs_of(piece, form.shows_end)]
        n_decoded += piece.token is not None
        reason = piece.finish_reason or reason
    return form.whole("".join(text), logprobs, reason, n_decoded)
