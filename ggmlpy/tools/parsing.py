"""The parser of an answer: text in pieces to deltas, by the format of the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from ggmlpy.tools.answer import CallDelta, Delta
from ggmlpy.tools.definitions import is_of_kind, kinds_of
from ggmlpy.tools.reader import SPACE, Reader, Reading, parsed_json

if TYPE_CHECKING:
    from ggmlpy.tools.formats import Format


class AnswerParser:
    """Parses one answer. The deltas of all `push` and of `finish`, joined, are the same however the
    text is cut.

    `names` are the tools that may be called; with none, or None for the format, nothing is taken
    for a call. `thinks` says that the prompt ends within the reasoning. What looks like a call and
    is none stays text. With `one_call` the answer is complete after the first.
    """

    def __init__(
        self,
        format: Format,
        names: Collection[str] = (),
        *,
        thinks: bool = False,
        shows_reasoning: bool = False,
        one_call: bool = False,
        types: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """`types` has the JSON schemas of parameters by tool and name. With `shows_reasoning` the
        reasoning stays where it is, in the content."""
        self.reader = Reader()
        self.names = frozenset(names)
        self.thinks = thinks
        self.shows_reasoning = shows_reasoning
        self.n_calls = 0
        self.is_complete = False  # what follows does not belong to the answer
        self._one_call = one_call
        self._types = types or {}
        self._deltas: list[Delta] = []
        self._space = ""  # white space of the content that is only given if text follows
        self._drops_space = False  # whether the next white space of the content is none of it
        self._new_id = format.new_id
        self._running = format.read(self)

    def push(self, text: str) -> list[Delta]:
        """What follows from more of the text."""
        if self.is_complete:
            return []
        self.reader.rest += text
        return self._run()

    def finish(self) -> list[Delta]:
        """What follows from the end of the text."""
        if self.is_complete:
            return []
        self.reader.is_ended = True
        deltas = self._run()
        if self._space and not self.n_calls:
            deltas.append(Delta(content=self._space))
        self.is_complete = True
        return deltas

    def _run(self) -> list[Delta]:
        next(self._running, None)
        deltas, self._deltas = self._deltas, []
        return deltas

    def _add(self, delta: Delta) -> None:
        if not self.is_complete:
            self._deltas.append(delta)

    # --- for formats ---

    def content(self, text: str) -> None:
        """More text of the answer."""
        text = self._space + text
        if self._drops_space:
            text = text.lstrip(SPACE)
        kept = text.rstrip(SPACE)
        self._space = text[len(kept) :]
        if kept:
            self._drops_space = False
            self._add(Delta(content=kept))

    def reasoning(self, close: str) -> Reading[None]:
        """Read the reasoning, to the marker that ends it."""
        text = ReasoningText(self._add)
        yield from self.reader.until([close], text.add)
        self._drops_space, self._space = True, ""

    def begin(self, name: str, id: str | None = None) -> None:
        """A call of a tool begins."""
        self._add(Delta(call=CallDelta(self.n_calls, "", name, id or self._new_id())))
        self.n_calls += 1
        self._space, self._drops_space = "", True

    def arguments(self, text: str) -> None:
        """More of the arguments of the call."""
        if text:
            self._add(Delta(call=CallDelta(self.n_calls - 1, text)))

    def end_call(self) -> None:
        """The call is complete."""
        self.is_complete = self._one_call

    def whole_call(self, name: str, arguments: dict[str, Any], id: str | None = None) -> None:
        """A call that is there as a whole."""
        self.begin(name, id)
        self.arguments(json.dumps(arguments, ensure_ascii=False))
        self.end_call()

    def value(self, tool: str, parameter: str, text: str) -> Any:
        """The value of a parameter that is written as text: what the schema of the tool says, else
        JSON where it is that."""
        kinds = kinds_of(self._types.get(tool, {}).get(parameter))
        if "null" in kinds and text.strip() in ("null", "None"):
            return None
        if kinds == {"string"} or (kinds == {"string", "null"} and text[:1] != '"'):
            return text
        if "boolean" in kinds and text.strip() in ("True", "False"):
            return text.strip() == "True"
        try:
            value = parsed_json(text)
        except ValueError:
            return text
        return value if "string" not in kinds or is_of_kind(value, kinds) else text


class ReasoningText:
    """Reasoning without the white space around it."""

    def __init__(self, emit: Callable[[Delta], None]) -> None:
        self._emit = emit
        self._space = ""
        self._is_first = True

    def add(self, text: str) -> None:
        text = self._space + text
        if self._is_first:
            text = text.lstrip(SPACE)
        kept = text.rstrip(SPACE)
        self._space = text[len(kept) :]
        if kept:
            self._is_first = False
            self._emit(Delta(reasoning=kept))
