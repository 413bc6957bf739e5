"""`ggmlpy generate`: text that continues a prompt."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ggmlpy.cli import common, options
from ggmlpy.cli.groups import ModelOptions, SamplingOptions, grouped
from ggmlpy.cli.guard import complain
from ggmlpy.cli.options import option
from ggmlpy.cli.show import console, harmless, say, write_json
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.engine.timings import Timings
    from ggmlpy.llama import Llama

DEFAULT_PROMPT = "Once upon a time"
N_TOKENS = 128  # unless -n says otherwise
N_STORY_TOKENS = 256  # the most that the packaged model writes: its stories end before


@grouped
def generate(
    model: options.ModelFile = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    n_predict: Annotated[
        int | None,
        option(
            "-n --n-predict N",
            "Tokens to write at most; -1: until the text ends or the context is full.",
            check=options.token_limit,
            default="128; the packaged model: to the end of the story",
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        option("-r --stop TEXT", "End before this text. Can be given several times."),
    ] = None,
    echo: Annotated[bool, option("--echo/--no-echo", "Show the prompt before the text.")] = True,
    as_json: options.AsJson = False,
    quiet: Annotated[bool, option("-q --quiet", "No line on speed.")] = False,
    verbose: Annotated[
        bool, option("-v --verbose", "Tell what was loaded, and all timings.")
    ] = False,
    *,
    setup: ModelOptions,
    sampling: SamplingOptions,
) -> None:
    """Write text that continues a prompt, as it comes.

    Only the text goes to stdout; speed and messages go to stderr.

    Examples:
      ggmlpy generate
      ggmlpy generate -m model.gguf -p "The capital of France is" -n 32 --temp 0
      ggmlpy generate -m model.gguf -f prompt.txt --no-echo > answer.txt
      echo "Dear diary," | ggmlpy generate --seed 7 --json
    """
    text = common.read_text(prompt, file)
    llm = common.open_model(model or packaged_model(), setup)
    if verbose:
        say(llm.describe())
    default_n = N_TOKENS if model is not None else N_STORY_TOKENS
    writing = _Writing(
        llm,
        DEFAULT_PROMPT if text is None else text,
        default_n if n_predict is None else n_predict,
        sampling.seeded(),
        stop,
    )
    writing.run(show=not as_json, echo=echo)
    if as_json:
        write_json(writing.as_json())
    elif not quiet:
        say(str(llm.timings) if verbose else writing.speed())
    writing.warn_if_cut()


class _Writing:
    """One prompt and what the model makes of it."""

    def __init__(
        self,
        llm: Llama,
        prompt: str,
        n_wanted: int,
        sampling: SamplingOptions,
        stop: list[str] | None,
    ) -> None:
        self.llm = llm
        self.prompt = prompt
        self.n_wanted = n_wanted  # -1: no limit
        self.sampling = sampling
        self.stop = stop
        self.text = ""
        self.tokens: list[int] = []  # generated ones
        self.finish_reason: str | None = None

    def run(self, *, show: bool, echo: bool) -> None:
        """Write all of it, to stdout as it comes if `show`; the output ends with a newline."""
        from ggmlpy.sampling import SamplingParams

        pieces = self.llm.pieces(
            self.prompt,
            SamplingParams(**self.sampling.as_arguments()),
            max_tokens=None if self.n_wanted == -1 else self.n_wanted,
            stop=self.stop,
        )
        shown = ""
        if show and echo:
            shown = self.prompt
            write_styled(shown)
        try:
            for piece in pieces:
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

    def as_json(self) -> dict[str, Any]:
        """What `--json` writes. Without a draw there is no seed to tell."""
        timings = self.llm.timings
        rates = {"prompt_rate": timings.prompt_rate, "generation_rate": timings.generation_rate}
        return {
            "model": Path(self.llm.model_path).name,
            "prompt": self.prompt,
            "text": self.text,
            "prompt_tokens": self.llm.tokenize(self.prompt, special=True),
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "seed": self.sampling.telling_seed,
            "n_prompt": timings.n_prompt,
            "n_generated": timings.n_generated,
            "timings": asdict(timings) | rates,
        }

    def speed(self) -> str:
        """Speed in one line, and the seed that gives this text again."""
        seed = self.sampling.telling_seed
        told = [speed_line(self.llm.timings), f"load {self.llm.load_s:.2f} s"]
        return "; ".join([*told, *([] if seed is None else [f"seed {seed}"])])

    def warn_if_cut(self) -> None:
        """Say so where the context, not -n, ended the text."""
        n_made = self.llm.timings.n_generated
        if self.finish_reason == "length" and (n_made < self.n_wanted or self.n_wanted == -1):
            n_ctx = self.llm.n_ctx_seq()
            complain("warning", f"stopped after {n_made} tokens: the context of {n_ctx} is full")


def speed_line(timings: Timings) -> str:
    """`prompt 5 tokens, 116.3/s; text 19 tokens, 65.2/s`"""
    prompt = f"prompt {timings.n_prompt} tokens, {timings.prompt_rate:.1f}/s"
    return f"{prompt}; text {timings.n_generated} tokens, {timings.generation_rate:.1f}/s"


def write_text(text: str) -> None:
    """Put text on stdout now. A terminal gets nothing that would steer it."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_styled(text: str) -> None:
    """As `write_text`; dim where stdout is a terminal, to tell a prompt from what follows it."""
    if sys.stdout.isatty():
        console(sys.stdout).print(harmless(text), style="dim", end="", soft_wrap=True)
        sys.stdout.flush()
    else:
        write_text(text)
