"""`ggmlpy chat`: a conversation on a terminal, or with one message per line through a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli import common, options
from ggmlpy.cli.adapter_options import AdapterOptions, adapter_options
from ggmlpy.cli.command import command, flag, option
from ggmlpy.cli.draft_options import DraftOptions, draft_options
from ggmlpy.cli.generate import speed_line, write_styled, write_text
from ggmlpy.cli.grammar_options import GrammarOptions, grammar_options
from ggmlpy.cli.guard import complain
from ggmlpy.cli.options import ModelOptions
from ggmlpy.cli.reasoning_options import ReasoningOptions, reasoning_options
from ggmlpy.cli.sampling_options import SamplingOptions
from ggmlpy.cli.show import say
from ggmlpy.cli.template_options import TemplateOptions, template_options
from ggmlpy.cli.text_options import NO_LIMIT, TextOptions, text_options
from ggmlpy.errors import BadBatch, CacheFull, FileError, TemplateError, TokenizerError
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.grammar import Grammar
    from ggmlpy.llama import Llama

PROMPT = "> "
HELP = """\
/clear   start a new conversation (the system message stays)
/exit    leave, as Ctrl-D does
/help    this list
Ctrl-C stops an answer; the part that was written stays in the conversation."""


@command
@options.model_file
@option("system", "-sys --system --system-prompt TEXT", "The system message.")
@option(
    "system_file",
    "-sysf --system-prompt-file FILE",
    "Read the system message from a file.",
    type=options.FILE,
)
@option("prompt", "-p --prompt TEXT", "The first message; - reads it from stdin.")
@option("file", "-f --file FILE", "Read the first message from a file.", type=options.FILE)
@options.escape
@flag("single_turn", "-st --single-turn", "End after the first answer.")
@text_options
@flag("quiet", "-q --quiet --no-show-timings", "Do not report the speed after an answer.")
@options.model_options
@options.sampling_options
@grammar_options
@template_options
@reasoning_options
@draft_options
@adapter_options
def chat(
    model: Path | None,
    system: str | None,
    system_file: Path | None,
    prompt: str | None,
    file: Path | None,
    escape: bool | None,
    single_turn: bool,
    ending: TextOptions,
    quiet: bool,
    setup: ModelOptions,
    sampling: SamplingOptions,
    form: GrammarOptions,
    template: TemplateOptions,
    reasoning: ReasoningOptions,
    draft: DraftOptions,
    adapters: AdapterOptions,
) -> None:
    r"""Talk with a model, using the chat template in its file.

    Type a message and press Enter. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.
    Through a pipe, every line is a message, and only the answers go to stdout.

    Examples:
      ggmlpy chat -m model.gguf
      ggmlpy chat -m model.gguf -sys "You answer in one sentence." --temp 0
      ggmlpy chat -m model.gguf -p "What is a monad?" -st
      printf 'Hello!\nAnd in French?\n' | ggmlpy chat -m model.gguf -q
    """
    if ending.n_predict == 0:
        raise click.UsageError("-n 0 would leave every message without an answer.")
    grammar, draft_model, variables = form.made(), draft.source(), reasoning.as_arguments()
    system = _text("-sys", system, "-sysf", system_file)
    first = _text("-p", prompt, "-f", file, escape=escape)
    overrides = template.overrides()
    more = {"draft_model": draft_model, "overrides": overrides, **adapters.arguments()}
    llm = common.open_model(model or packaged_model(), setup, **more)
    _check(llm)
    if llm.chat_template.is_default:
        poor = "a plain one is used, and answers may be poor"
        complain("warning", f"the file has no chat template: {poor}")
    interactive = sys.stdin.isatty()
    arguments = sampling.seeded().as_arguments(llm.tokenizer.eog_ids)
    arguments |= ending.as_arguments(NO_LIMIT, escape) | variables
    conversation = _Conversation(llm, system, arguments, grammar, interactive)
    if interactive and not single_turn:
        say("/help lists the commands, Ctrl-D leaves")
    if first is None:
        messages = _messages(interactive)
    else:
        messages = chain([first], [] if single_turn else _messages(interactive))
    for number, message in enumerate(messages, 1):
        if message in ("/exit", "/quit"):
            break
        if message.startswith("/") and " " not in message:
            conversation.command(message)
            continue
        if _answered(conversation, number, message, interactive) and not quiet:
            say(speed_line(llm.timings))
        if single_turn:
            break


def _text(
    name: str, text: str | None, file_name: str, file: Path | None, *, escape: bool | None = False
) -> str | None:
    """The text of one of two options; None if neither is given. Raises FileError."""
    if text is None and file is None:  # a pipe has messages
        return None
    if text is not None and file is not None:
        both = f"{name} and {file_name or f'{name}-file'}"
        raise click.UsageError(f"{both} cannot be used together.")
    return common.read_text(text, file, escape=escape)


def _check(llm: Llama) -> None:
    """Raise Unsupported or TokenizerError for a model that can answer no message: one that
    generates no text, or whose file has no tokenizer."""
    llm.request([0])
    llm.tokenize("")


def _answered(conversation: _Conversation, number: int, message: str, interactive: bool) -> bool:
    """Answer a message; on a terminal, an error is reported and False returned."""
    try:
        conversation.answer(message)
    except (BadBatch, CacheFull, TemplateError, TokenizerError) as error:
        if not interactive:
            raise type(error)(f"message {number}: {error}{_hint(error)}") from None
        complain("error", f"{error}{_hint(error)}")
        return False
    return True


def _hint(error: Exception) -> str:
    """A hint for a conversation that does not fit the context or the template."""
    larger = "-c N makes the context larger, " if isinstance(error, CacheFull) else ""
    return f" ({larger}/clear starts a new conversation)"


class _Conversation:
    """The messages so far; `answer` adds a user's message and the model's answer."""

    def __init__(
        self,
        llm: Llama,
        system: str | None,
        options: dict[str, Any],
        grammar: Grammar | None,
        interactive: bool,
    ) -> None:
        self._llm = llm
        self._options = options  # of an answer: sampling, where it ends, reasoning
        self._grammar = grammar
        self._interactive = interactive
        self._beginning = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._beginning)
        self._lost = False  # whether the oldest turns have been dropped

    def command(self, name: str) -> None:
        if name == "/clear":
            self._messages = list(self._beginning)
            self._lost = False
            say("the conversation is cleared")
        elif name == "/help":
            say(HELP)
        else:
            say(f"there is no command {name}; /help lists them")

    def answer(self, message: str) -> None:
        """Write the answer to stdout. A message that fails is not added."""
        messages, chunks = self._asked([*self._messages, {"role": "user", "content": message}])
        shown, reason = _Shown(), None
        with _interrupts(self._interactive) as interrupts:
            try:
                for chunk in chunks:
                    choice = chunk["choices"][0]
                    reason = choice["finish_reason"]
                    shown.reason(choice["delta"].get("reasoning_content", ""))
                    shown.say(choice["delta"].get("content", ""))
                    if interrupts.came:
                        break
            except KeyboardInterrupt:
                if not interrupts.came:
                    raise
                self._llm.reset()  # the second Ctrl-C interrupted the engine
            finally:
                shown.end()
        self._messages = [*messages, shown.message()]
        if reason == "length" and self._options["max_tokens"] is None:
            full = CacheFull(f"the context of {self._llm.n_ctx_seq()} tokens is full")
            complain("warning", f"{full}{_hint(full)}")

    def _asked(
        self, messages: list[dict[str, str]]
    ) -> tuple[list[dict[str, str]], Iterator[dict[str, Any]]]:
        """The messages that fit the context, and the answer to them, piece by piece.

        With `context_shift` the oldest turns after the system message are dropped until the prompt
        fits, which is said once in a conversation. Raises BadBatch where the last message alone
        does not fit, and without it.
        """
        first, dropped = len(self._beginning), 0
        while True:
            kept = [*messages[:first], *messages[first + dropped :]]
            try:
                chunks = self._llm.create_chat_completion(
                    kept, stream=True, grammar=self._grammar, **self._options
                )
            except BadBatch:  # the prompt is too long
                dropped += 2  # a message and its answer
                if not self._options["context_shift"] or first + dropped >= len(messages):
                    raise
                continue
            if dropped and not self._lost:
                self._lost = True
                full = f"the context of {self._llm.n_ctx_seq()} tokens is full"
                complain("warning", f"{full}: from now on the oldest messages are left out")
            return kept, chunks


class _Shown:
    """What was shown of an answer."""

    def __init__(self) -> None:
        self._thoughts = ""
        self._text = ""

    def reason(self, piece: str) -> None:
        """Show more of the reasoning, if stdout is a terminal."""
        self._thoughts += piece
        if piece and sys.stdout.isatty():
            write_styled(piece)

    def say(self, piece: str) -> None:
        """Show more of the answer."""
        piece = piece if self._text else piece.lstrip()  # many answers begin with a space
        if piece and not self._text and self._thoughts and sys.stdout.isatty():
            write_text("\n\n")
        self._text += piece
        write_text(piece)

    def end(self) -> None:
        """End the last line."""
        write_text("" if self._text.endswith("\n") else "\n")

    def message(self) -> dict[str, str]:
        """The answer as a message; templates that want to see reasoning again do."""
        thoughts = {"reasoning_content": self._thoughts} if self._thoughts else {}
        return {"role": "assistant", "content": self._text.strip(), **thoughts}


def _messages(interactive: bool) -> Iterator[str]:
    """The user's messages: lines that are not empty."""
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401  (gives input() editing and a history)
    while True:
        try:
            line = _typed() if interactive else common.read_line()
        except KeyboardInterrupt:
            if not interactive:
                raise
            say("\n/exit or Ctrl-D leaves")
            continue
        if line is None:
            return
        if line.strip():
            yield line.strip()


def _typed() -> str | None:
    """A line from the terminal; None at its end (Ctrl-D)."""
    try:
        if sys.stdout.isatty():
            return input(PROMPT)
        print(PROMPT, end="", file=sys.stderr, flush=True)  # stdout is for answers only
        return input()
    except EOFError:
        say("")
        return None
    except UnicodeDecodeError as error:
        raise FileError(f"standard input: not text in {sys.stdin.encoding}: {error}") from None


class _Interrupts:
    """Records the first Ctrl-C; the second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


@contextmanager
def _interrupts(caught: bool) -> Iterator[_Interrupts]:
    """Whether Ctrl-C was pressed in the block. Unless `caught`, it ends the program.

    An exception during a decode would lose the KV cache, which the next answer needs.
    """
    interrupts = _Interrupts()
    if not caught:
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
