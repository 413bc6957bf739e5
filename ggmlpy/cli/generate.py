"""`ggmlpy generate`: text that continues a prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggmlpy.cli import common, options
from ggmlpy.cli.adapter_options import AdapterOptions, adapter_options
from ggmlpy.cli.command import command, flag
from ggmlpy.cli.draft_options import DraftOptions, draft_options
from ggmlpy.cli.grammar_options import GrammarOptions, grammar_options
from ggmlpy.cli.guard import complain
from ggmlpy.cli.options import ModelOptions
from ggmlpy.cli.prompt_cache import PromptCacheOptions, prompt_cache_options
from ggmlpy.cli.sampling_options import SamplingOptions
from ggmlpy.cli.show import console, harmless, say, write_json
from ggmlpy.cli.text_options import UNTIL_FULL, TextOptions, text_options
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.engine.generation import Prompt
    from ggmlpy.engine.timings import Timings
    from ggmlpy.grammar import Grammar
    from ggmlpy.llama import Llama

DEFAULT_PROMPT = "Once upon a time"
N_TOKENS = 128  # without -n
N_STORY_TOKENS = 256  # of the packaged model, whose stories end before


@command
@options.model_file
@options.prompt
@options.prompt_file
@options.binary_file
@options.escape
@text_options
@flag(
    "echo",
    "--echo/--no-echo --display-prompt/--no-display-prompt",
    "Show the prompt before the text.",
    default=True,
)
@flag("special", "-sp --special", "Show control tokens in the text.")
@options.as_json
@flag("quiet", "-q --quiet", "Do not report the speed.")
@flag("verbose", "-v --verbose --log-verbose", "Show what was loaded, and all timings.")
@options.model_options
@options.sampling_options
@grammar_options
@prompt_cache_options
@draft_options
@adapter_options
def generate(
    model: Path | None,
    prompt: str | None,
    file: Path | None,
    binary_file: Path | None,
    escape: bool | None,
    ending: TextOptions,
    echo: bool,
    special: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    setup: ModelOptions,
    sampling: SamplingOptions,
    form: GrammarOptions,
    cached: PromptCacheOptions,
    draft: DraftOptions,
    adapters: AdapterOptions,
) -> None:
    """Generate text that continues a prompt.

    Only the text goes to stdout; speed and messages go to stderr. Without -n, 128 tokens are
    generated, or a whole story of the packaged model.

    Examples:
      ggmlpy generate
      ggmlpy generate -m model.gguf -p "The capital of France is" -n 32 --temp 0
      ggmlpy generate -m model.gguf -f prompt.txt --no-echo > answer.txt
      ggmlpy generate -m model.gguf -p "A cat:" -j '{"type": "object"}'
      ggmlpy generate -m model.gguf -f report.txt --spec-type ngram-simple
      ggmlpy generate -m model.gguf --lora-scaled adapter.gguf:0.5 -p "A cat:"
      ggmlpy generate -m large.gguf -md small.gguf -p "The capital of France is"
      echo "Dear diary," | ggmlpy generate --seed 7 --json
    """
    grammar, draft_model = form.made(), draft.source()
    text = common.read_text(prompt, file, binary_file, escape=escape)
    more = {"draft_model": draft_model, **adapters.arguments()}
    llm = common.open_model(model or packaged_model(), setup, **more)
    if verbose:
        say(llm.describe())
    default_n = N_TOKENS if model is not None else N_STORY_TOKENS
    loaded = cached.load(llm, goes_on=text is None)
    started: Prompt = loaded or DEFAULT_PROMPT
    generation = _Generation(
        llm,
        started if text is None else text,
        ending.as_arguments(default_n, escape) | {"special": special},
        sampling.seeded(),
        grammar,
    )
    generation.run(
        show=not as_json, echo=echo, after_prompt=partial(cached.keep_prompt, llm, loaded)
    )
    cached.keep_text(llm, generation.n_run)
    if as_json:
        write_json(generation.as_json())
    elif not quiet:
        say(str(llm.timings) if verbose else generation.speed())
    if ending.n_predict != UNTIL_FULL:
        generation.warn_if_cut()


class _Generation:
    """One prompt, and the text that the model generates after it."""

    def __init__(
        self,
        llm: Llama,
        prompt: Prompt,
        ending: dict[str, Any],
        sampling: SamplingOptions,
        grammar: Grammar | None,
    ) -> None:
        self.llm = llm
        self.prompt = prompt if isinstance(prompt, str) else llm.tokenizer.decode_prompt(prompt)
        self.given = prompt
        self.ending = ending  # and other arguments of `pieces`
        self.sampling = sampling
        self.grammar = grammar
        self.text = ""
        self.tokens: list[int] = []  # generated ones
        self.finish_reason: str | None = None

    def run(self, *, show: bool, echo: bool, after_prompt: Callable[[], None]) -> None:
        """Generate the text, and with `show` write it to stdout, with a newline at its end.

        `after_prompt` is called when the prompt was run, and nothing else.
        """
        from ggmlpy.sampling import SamplingParams

        pieces = self.llm.pieces(
            self.given,
            SamplingParams(**self.sampling.as_arguments(self.llm.tokenizer.eog_ids)),
            grammar=self.grammar,
            **self.ending,
        )
        shown = ""
        if show and echo:
            shown = self.prompt
            write_styled(shown)
        try:
            for i, piece in enumerate(pieces):
                if i == 0:
                    after_prompt()
                self.text += piece.text
                self.finish_reason = piece.finish_reason
                if piece.token is not None:
                    self.tokens.append(piece.token)
                if show:
                    shown = piece.text or shown
                    write_text(piece.text)
        finally:
            if show and not shown.endswith("\n"):
                write_text("\n")

    @property
    def prompt_tokens(self) -> list[int]:
        if isinstance(self.given, str):
            return self.llm.tokenize(self.given, special=True)
        return list(self.given)

    @property
    def n_run(self) -> int:
        """Tokens that have been run: the last one of a text is not."""
        return len(self.prompt_tokens) + max(0, len(self.tokens) - 1)

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` writes; the seed is None if nothing is drawn."""
        timings = self.llm.timings
        rates = {
            "prompt_rate": timings.prompt_rate,
            "generation_rate": timings.generation_rate,
            "acceptance_rate": timings.acceptance_rate,
        }
        return {
            "model": Path(self.llm.model_path).name,
            "prompt": self.prompt,
            "text": self.text,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "seed": self.sampling.effective_seed,
            "n_prompt": timings.n_prompt,
            "n_generated": timings.n_generated,
            "timings": asdict(timings) | rates,
        }

    def speed(self) -> str:
        """The speed in one line, and the seed that reproduces the text."""
        seed = self.sampling.effective_seed
        parts = [speed_line(self.llm.timings), f"load {self.llm.load_s:.2f} s"]
        return "; ".join([*parts, *([] if seed is None else [f"seed {seed}"])])

    def warn_if_cut(self) -> None:
        """Warn if the context ended the text, and not -n."""
        timings, most = self.llm.timings, self.ending["max_tokens"]
        n_made = timings.n_generated
        if self.finish_reason == "length" and (most is None or n_made < most):
            larger = "N" if most is None else str(timings.n_prompt + most)
            complain(
                "warning",
                f"stopped after {n_made} tokens: the context of {self.llm.n_ctx_seq()} is full;"
                f" -c {larger} makes it larger, --context-shift goes on without older tokens",
            )


def speed_line(timings: Timings) -> str:
    """`prompt 5 tokens, 116.3/s; text 19 tokens, 65.2/s`"""
    prompt = f"prompt {_counted(timings.n_prompt, timings.prompt_rate)}"
    text = f"text {_counted(timings.n_generated, timings.generation_rate)}"
    if not timings.n_drafted:
        return f"{prompt}; {text}"
    drafts = f"{timings.n_accepted} of {timings.n_drafted} drafted tokens accepted"
    return f"{prompt}; {text}; {drafts} ({timings.acceptance_rate:.0%})"


def _counted(n_tokens: int, rate: float) -> str:
    """`19 tokens, 65.2/s`; a rate of 0 is of nothing that was measured."""
    return f"{n_tokens} token{'s' * (n_tokens != 1)}" + (f", {rate:.1f}/s" if rate else "")


def write_text(text: str) -> None:
    """Write text to stdout and flush. Control characters are escaped for a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_styled(text: str) -> None:
    """As `write_text`, but dim on a terminal, to set a prompt off from the text after it."""
    if sys.stdout.isatty():
        console(sys.stdout).print(harmless(text), style="dim", end="", soft_wrap=True)
        sys.stdout.flush()
    else:
        write_text(text)
