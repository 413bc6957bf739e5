"""Options of sampling: llama.cpp's names and defaults."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from ggmlpy.cli.escapes import unescaped
from ggmlpy.cli.groups import setting
from ggmlpy.cli.types import LogitBias, Real, Whole

FRESH_SEED = -1
SAMPLERS = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
NO_BREAKERS = "none"


class Samplers(click.ParamType[tuple[str, ...]]):
    """Names of samplers, separated by semicolons."""

    name = "samplers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        from ggmlpy.errors import SamplingError
        from ggmlpy.sampling.names import sampler_name, samplers_by_letters

        by_letters = param is not None and param.name == "sampler_seq"
        try:
            if by_letters:
                return samplers_by_letters(value)
            return tuple(sampler_name(part.strip()) for part in value.split(";") if part.strip())
        except SamplingError as error:
            self.fail(f"{error}.", param, ctx)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is sampled. The names are those of `Llama.create_completion`."""

    temperature: float = setting(
        0.8,
        "--temp --temperature T",
        "Higher is more random, lower more predictable; 0 always takes the most likely token.",
        type=Real(0),
    )
    top_k: int = setting(40, "--top-k K", "Keep the K most likely tokens; 0: all.", type=Whole(0))
    top_p: float = setting(
        0.95,
        "--top-p P",
        "Keep the most likely tokens until their probabilities reach P; 1: all.",
        type=Real(0, 1),
    )
    min_p: float = setting(
        0.05,
        "--min-p P",
        "Drop tokens less likely than P times the most likely one; 0: none.",
        type=Real(0, 1),
    )
    typical_p: float = setting(
        1.0,
        "--typical --typical-p P",
        "Keep the most typical tokens until their probabilities exceed P; 1: all.",
        type=Real(0, 1),
    )
    top_n_sigma: float = setting(
        -1.0,
        "--top-nsigma --top-n-sigma N",
        "Keep logits within N standard deviations of the largest; 0 or less: all.",
        type=Real(),
    )
    xtc_probability: float = setting(
        0.0,
        "--xtc-probability P",
        "How often XTC drops the most likely tokens, all but one; 0: never.",
        type=Real(0, 1),
    )
    xtc_threshold: float = setting(
        0.1, "--xtc-threshold P", "The least probability of those; above 0.5: never.",
        type=Real(0, 1),
    )  # fmt: skip
    dynatemp_range: float = setting(
        0.0,
        "--dynatemp-range X",
        "The temperature is up to X lower or higher, as the entropy of the tokens is.",
        type=Real(0),
    )
    dynatemp_exponent: float = setting(
        1.0, "--dynatemp-exp X", "Exponent of the entropy, which is 1 at most.", type=Real(0)
    )
    min_keep: int = setting(
        1, "--min-keep N", "Each step that drops tokens leaves N of them.", type=Whole(0)
    )
    repeat_penalty: float = setting(
        1.0,
        "--repeat-penalty X",
        "Divides the logits of the last tokens; 1: no penalty.",
        type=Real(),
    )
    frequency_penalty: float = setting(
        0.0,
        "--frequency-penalty X",
        "Subtracted from a logit for each occurrence among them; 0: none.",
        type=Real(),
    )
    presence_penalty: float = setting(
        0.0,
        "--presence-penalty X",
        "Subtracted from the logit of any of them; 0: none.",
        type=Real(),
    )
    penalty_last_n: int = setting(
        64, "--repeat-last-n N", "How many these are; 0: none, -1: all.", type=Whole(-1)
    )
    dry_multiplier: float = setting(
        0.0,
        "--dry-multiplier X",
        "DRY's penalty on tokens that extend a repetition; 0: none.",
        type=Real(),
    )
    dry_base: float = setting(
        1.75, "--dry-base X", "Base of its power of the repetition's length.", type=Real(1)
    )
    dry_allowed_length: int = setting(
        2, "--dry-allowed-length N", "Shorter repetitions have no penalty.", type=Whole(0)
    )
    dry_penalty_last_n: int = setting(
        64, "--dry-penalty-last-n N", "Tokens that DRY considers; 0: none, -1: all.", type=Whole(-1)
    )
    dry_sequence_breakers: tuple[str, ...] = setting(
        ("\n", ":", '"', "*"),
        "--dry-sequence-breaker TEXT",
        "A text beyond which a repetition is not followed, in place of the default ones; may be"
        " given several times. none: no such text.",
        multiple=True,
        show_default=r"\n : \" *",
    )
    mirostat_mode: int = setting(
        0,
        "--mirostat N",
        "1 or 2: mirostat of this version in place of the steps that drop tokens.",
        type=Whole(0, 2),
    )
    mirostat_eta: float = setting(0.1, "--mirostat-lr X", "How fast it learns.", type=Real())
    mirostat_tau: float = setting(
        5.0, "--mirostat-ent X", "The surprise that it aims at, in bits.", type=Real(0)
    )
    adaptive_target: float = setting(
        -1.0,
        "--adaptive-target P",
        "Prefer tokens near this probability, where --samplers names adaptive_p; below 0: off.",
        type=Real(),
    )
    adaptive_decay: float = setting(
        0.9,
        "--adaptive-decay X",
        "How long it remembers the probabilities of tokens; 0.99 at most.",
        type=Real(0, 0.99),
    )
    logit_bias: tuple[tuple[int, float], ...] = setting(
        (),
        "-l --logit-bias TOKEN(+/-)BIAS",
        "Add BIAS to the logit of a token id: 15043+1 makes it more likely, 15043-inf impossible."
        " Can be given several times.",
        type=LogitBias(),
        multiple=True,
        show_default=False,
    )
    ignore_eos: bool = setting(
        False,
        "--ignore-eos",
        "Never sample a token that ends the text.",
        is_flag=True,
    )
    samplers: tuple[str, ...] = setting(
        tuple(SAMPLERS.split(";")),
        "--samplers NAMES",
        "The steps in their order, separated by semicolons; others are infill and adaptive_p.",
        type=Samplers(),
        show_default=SAMPLERS.replace(";", "; "),
    )
    sampler_seq: tuple[str, ...] | None = setting(
        None,
        "--sampler-seq --sampling-seq LETTERS",
        "The same by letters: e penalties, d dry, s top_n_sigma, k top_k, y typ_p, p top_p,"
        " m min_p, x xtc, t temperature, i infill, a adaptive_p.",
        type=Samplers(),
        show_default="edskypmxt",
    )
    seed: int = setting(
        FRESH_SEED,
        "-s --seed N",
        "Of the random numbers: the same seed gives the same text.",
        type=Whole(-1, 2**64 - 1),
        show_default="a random one",
    )

    def __post_init__(self) -> None:
        if self.sampler_seq is not None and self.samplers != tuple(SAMPLERS.split(";")):
            raise click.UsageError("--samplers and --sampler-seq exclude each other.")

    def seeded(self) -> SamplingOptions:
        """The options with a seed that can be reported, so that the text can be reproduced."""
        return replace(self, seed=secrets.randbits(32)) if self.seed == FRESH_SEED else self

    @property
    def effective_seed(self) -> int | None:
        """The seed, unless it has no effect, at temperature 0."""
        from ggmlpy.sampling import SamplingParams

        arguments = self.as_arguments() | {"seed": None}
        return None if SamplingParams(**arguments).is_greedy else self.seed

    def as_arguments(self, eog_ids: Iterable[int] = ()) -> dict[str, Any]:
        """For `create_completion`; `eog_ids` are the tokens that end a text of the model."""
        arguments = asdict(self)
        biases: dict[int, float] = {}
        for token, bias in self.logit_bias:
            biases[token] = biases.get(token, 0.0) + bias
        if arguments.pop("ignore_eos"):
            biases |= dict.fromkeys(eog_ids, -math.inf)
        arguments["logit_bias"] = biases or None
        by_letters = arguments.pop("sampler_seq")
        if by_letters is not None:
            arguments["samplers"] = by_letters
        breakers: list[str] = []
        for text in self.dry_sequence_breakers:
            if text == NO_BREAKERS:
                breakers.clear()
            else:
                breakers.append(unescaped(text))
        arguments["dry_sequence_breakers"] = tuple(breakers)
        return arguments
