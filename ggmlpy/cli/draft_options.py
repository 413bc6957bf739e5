"""Options of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.options import FILE
from ggmlpy.cli.types import Real, Whole

if TYPE_CHECKING:
    from ggmlpy.draft import DraftModel, PromptLookup

SECTION = "Speculative decoding"


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What proposes tokens that are then checked together."""

    model_draft: Path | None = setting(  # noqa: RUF009 - as in all groups
        None,
        "-md --model-draft --spec-draft-model FILE",
        "A smaller model with the same vocabulary, which proposes tokens. The text is the same as"
        " without it.",
        type=FILE,
    )
    spec_type: str | None = setting(
        None,
        "--spec-type TYPE",
        "What proposes tokens: draft-simple, the model of -md; ngram-simple, what followed the same"
        " tokens before (prompt lookup); none.",
        type=click.Choice(["none", "draft-simple", "ngram-simple"]),
        show_default="draft-simple with -md",
    )
    draft_max: int | None = setting(
        None,
        "--draft-max --draft --draft-n --spec-draft-n-max N",
        "Most tokens that -md proposes at a time.",
        type=Whole(1),
        show_default="16",
    )
    draft_min: int | None = setting(
        None,
        "--draft-min --draft-n-min --spec-draft-n-min N",
        "Use no proposals of -md that have fewer tokens.",
        type=Whole(0),
        show_default="0",
    )
    draft_p_min: float | None = setting(
        None,
        "--draft-p-min --spec-draft-p-min P",
        "Least probability of a token that -md proposes.",
        type=Real(0, 1),
        show_default="0.75",
    )
    n_gpu_layers_draft: int | None = setting(
        None,
        "-ngld --n-gpu-layers-draft --gpu-layers-draft --spec-draft-ngl N",
        "How many of the last layers of -md lie on a backend with memory of its own; -1: all.",
        type=Whole(-1),
        show_default="-1",
    )
    ngram_size_n: int | None = setting(
        None,
        "--spec-ngram-simple-size-n N",
        "ngram-simple compares the last N tokens, then fewer, down to 2 (down to 1 with N = 1).",
        type=Whole(1),
        show_default="3",
    )
    ngram_size_m: int | None = setting(
        None,
        "--spec-ngram-simple-size-m N",
        "Most tokens that ngram-simple proposes at a time.",
        type=Whole(1),
        show_default="10",
    )

    def source(self) -> DraftModel | PromptLookup | None:
        """The argument `draft_model` of `Llama`. Raises click.UsageError, ArgumentError."""
        of_model = {
            "n_max": self.draft_max,
            "n_min": self.draft_min,
            "p_min": self.draft_p_min,
            "n_gpu_layers": self.n_gpu_layers_draft,
        }
        of_lookup = (self.ngram_size_n, self.ngram_size_m)
        if self.model_draft is None and any(value is not None for value in of_model.values()):
            raise click.UsageError(
                "--draft-max, --draft-min, --draft-p-min and -ngld need -md FILE."
            )
        if self.spec_type != "ngram-simple" and of_lookup != (None, None):
            raise click.UsageError("--spec-ngram-simple-… needs --spec-type ngram-simple.")
        if self.spec_type == "none":
            return None
        if self.spec_type == "ngram-simple":
            if self.model_draft is not None:
                raise click.UsageError("-md and --spec-type ngram-simple cannot be used together.")
            from ggmlpy.draft import PromptLookup

            size_n = 3 if self.ngram_size_n is None else self.ngram_size_n
            size_m = 10 if self.ngram_size_m is None else self.ngram_size_m
            return PromptLookup(size_n, size_m, min(2, size_n))
        if self.model_draft is None:
            if self.spec_type == "draft-simple":
                raise click.UsageError("--spec-type draft-simple needs a draft model: -md FILE.")
            return None
        from ggmlpy.draft import DraftModel

        given: dict[str, Any] = {name: n for name, n in of_model.items() if n is not None}
        return DraftModel(self.model_draft, **given)


draft_options = group(DraftOptions, "draft", SECTION)
