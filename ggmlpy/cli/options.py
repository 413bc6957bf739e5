"""Options: how they are written down, and those that several commands share.

Names and defaults are llama.cpp's where it has the option.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

MODEL_PANEL = "Model and machine"
SAMPLING_PANEL = "Choice of the next token"
SWITCHES = ("-fa", "--flash-attn")  # whose value may be left out: `on`
MAX_NUMBERS = 1000  # in a list such as 1-512

_NUMBERS = re.compile(r"([0-9]+)(?:-([0-9]+)(?:([+*])([0-9]+))?)?")


def option(
    usage: str,
    help: str,
    *,
    check: Callable[[Any], Any] | None = None,
    default: str | None = None,
    panel: str | None = None,
) -> Any:
    """An option from its usage, `-n --n-predict N`: its names, then the word for its value.

    `check` returns the value or raises BadParameter. `default` says in words what happens without
    the option, where its default value does not.
    """
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    return typer.Option(
        *names,
        metavar=" ".join(words[len(names) :]),
        help=help,
        callback=check,
        show_default=True if default is None else default,
        rich_help_panel=panel,
    )


def at_least(low: float) -> Callable[[Any], Any]:
    """A check that refuses smaller values. (typer's `min` would widen every line of the help.)"""
    return within(low, math.inf)


def within(low: float, high: float) -> Callable[[Any], Any]:
    """A check that refuses values outside low … high, and NaN."""

    def check(value: Any) -> Any:
        if value is None or low <= value <= high:
            return value
        must = f"at least {low:g}" if high == math.inf else f"in {low:g} … {high:g}"
        raise typer.BadParameter(f"{value} is not {must}.")

    return check


def whole_numbers(text: str, option_name: str, low: int) -> list[int]:
    """The numbers of a list such as `128,512`, each at least `low`. Raises BadParameter.

    As in llama.cpp `8-16` are all from 8 to 16, `8-16+4` every fourth, `8-64*2` the doubles of 8.
    """
    parts = [_range(part.strip()) for part in text.split(",")]
    numbers = [number for part in parts for number in part]
    if not all(parts) or min(numbers) < low:
        must = (
            f"{text!r} is not a list of whole numbers of at least {low}, such as 128,512 or 8-64*2."
        )
        raise typer.BadParameter(must, param_hint=f"'{option_name}'")
    if len(numbers) > MAX_NUMBERS:
        must = f"{text!r} are more than {MAX_NUMBERS} numbers."
        raise typer.BadParameter(must, param_hint=f"'{option_name}'")
    return numbers


def _range(text: str) -> list[int]:
    """The numbers of `8`, `8-16`, `8-16+4` or `8-64*2`; none if it is nothing of that.

    Of more than there may be, only so many that this shows.
    """
    found = _NUMBERS.fullmatch(text)
    if found is None:
        return []
    first, last = int(found[1]), int(found[2] or found[1])
    by, step = found[3] or "+", int(found[4] or 1)
    if step < 1 if by == "+" else step < 2 or first < 1:
        return []  # it would never get there
    numbers: list[int] = []
    while first <= last and len(numbers) <= MAX_NUMBERS:
        numbers.append(first)
        first = first + step if by == "+" else first * step
    return numbers


def _switch(value: str) -> str:
    """The check of -fa: on, off or auto; llama-bench has 1 and 0."""
    word = {"1": "on", "0": "off"}.get(value, value)
    if word not in ("on", "off", "auto"):
        raise typer.BadParameter(f"{value!r} is not on, off or auto.")
    return word


def token_limit(n: int | None) -> int | None:
    """The check of -n: at least 1, or -1 for no limit."""
    if n is None or n >= 1 or n == -1:
        return n
    raise typer.BadParameter(f"{n} is not at least 1, nor -1 for no limit.")


def _thread_count(n: int | None) -> int | None:
    """The check of -t, before anything is read or written."""
    if n is None:
        return None
    from ggmlpy.backends.cpu.runner import MAX_THREADS

    checked: int = within(1, MAX_THREADS)(n)
    return checked


def _model(usage: str, help: str, **more: Any) -> Any:
    return option(usage, help, panel=MODEL_PANEL, **more)


def _sampling(usage: str, help: str, **more: Any) -> Any:
    return option(usage, help, panel=SAMPLING_PANEL, **more)


ModelFile = Annotated[
    Path | None,
    option(
        "-m --model FILE",
        "The GGUF file. Of a split model, its first file.",
        default="the small model in the package",
    ),
]
Prompt = Annotated[str | None, option("-p --prompt TEXT", "The text; - reads it from stdin.")]
PromptFile = Annotated[
    Path | None,
    option("-f --file FILE", "Read the text from a file; one newline at its end is left out."),
]
AsJson = Annotated[bool, option("--json", "Write JSON, one object a line.")]

ContextSize = Annotated[
    int,
    _model(
        "-c --ctx-size N",
        "Tokens that fit in the context; 0: as many as the model was trained with.",
        check=at_least(0),
    ),
]
UBatchSize = Annotated[
    int, _model("-ub --ubatch-size N", "Prompt tokens that run at a time.", check=at_least(1))
]
BatchSize = Annotated[
    int, _model("-b --batch-size N", "Prompt tokens that are given at a time.", check=at_least(1))
]
KvUnified = Annotated[
    bool,
    _model("-kvu --kv-unified", "One cache that all sequences share, not an equal part for each."),
]
Threads = Annotated[
    int | None,
    _model("-t --threads N", "CPU threads.", check=_thread_count, default="one per core"),
]
BackendName = Annotated[
    str,
    _model(
        "--backend NAME",
        "What computes: cpu, reference (slow, the yardstick), or one that a package adds;"
        " auto is the fastest here.",
    ),
]
TypeK = Annotated[
    str,
    _model(
        "-ctk --cache-type-k TYPE",
        "Type of the K cache: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl.",
    ),
]
TypeV = Annotated[str, _model("-ctv --cache-type-v TYPE", "Type of the V cache: one of the same.")]
FlashAttn = Annotated[
    str,
    _model(
        "-fa --flash-attn on|off|auto",
        "Attention as one fused node, or (off) step by step; auto is on.",
        check=_switch,
    ),
]
GpuLayers = Annotated[
    int,
    _model(
        "-ngl --n-gpu-layers N",
        "How many of the last layers, the output among them, lie on a backend with memory of its"
        " own; -1: all.",
        check=at_least(-1),
    ),
]


def override_tensors(text: str) -> dict[str, str]:
    """`PATTERN=BACKEND,PATTERN=BACKEND` as pairs. Raises BadParameter."""
    pairs = [part.rpartition("=") for part in text.split(",") if part]
    for pattern, equals, name in pairs:
        if not (pattern and equals and name):
            raise typer.BadParameter(f"{text!r} is not PATTERN=BACKEND, or several with commas.")
    return {pattern: name for pattern, _, name in pairs}


def _checked_overrides(text: str) -> str:
    override_tensors(text)
    return text


OverrideTensors = Annotated[
    str,
    _model(
        "-ot --override-tensor PATTERN=BACKEND,…",
        "Where tensors lie whose names a regular expression matches, whatever -ngl says.",
        check=_checked_overrides,
        default="none",
    ),
]

Temperature = Annotated[
    float,
    _sampling(
        "--temp T",
        "Below 1 keeps to the likely, above 1 dares more; 0 takes the likeliest, always.",
        check=at_least(0),
    ),
]
TopK = Annotated[
    int, _sampling("--top-k K", "Keep the K likeliest tokens; 0: all.", check=at_least(0))
]
TopP = Annotated[
    float,
    _sampling(
        "--top-p P",
        "Keep the likeliest tokens that make up the probability P; 1: all.",
        check=within(0, 1),
    ),
]
MinP = Annotated[
    float,
    _sampling(
        "--min-p P",
        "Drop tokens less likely than P times the likeliest; 0: none.",
        check=within(0, 1),
    ),
]
Typical = Annotated[
    float,
    _sampling(
        "--typical P",
        "Keep the most typical tokens that make up the probability P; 1: all.",
        check=within(0, 1),
    ),
]
RepeatPenalty = Annotated[
    float,
    _sampling("--repeat-penalty X", "Divides the logits of the last 64 tokens; 1: no penalty."),
]
FrequencyPenalty = Annotated[
    float,
    _sampling(
        "--frequency-penalty X",
        "Taken from a logit for each time that the token was seen; 0: none.",
    ),
]
PresencePenalty = Annotated[
    float,
    _sampling("--presence-penalty X", "Taken from a logit if the token was seen at all; 0: none."),
]
Seed = Annotated[
    int,
    _sampling(
        "-s --seed N",
        "Of the draws: the same seed gives the same text.",
        check=within(-1, 2**64 - 1),
        default="a fresh one",
    ),
]
