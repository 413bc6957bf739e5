"""Options of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    spec_type: str = setting(
        "none",
        "--spec-type TYPE",
        "What proposes tokens: draft-simple, the model of -md; ngram-simple, what followed the same"
        " tokens before (prompt lookup); none.",
        type=click.Choice(["none", "draft-simple", "ngram-simple"]),
        show_default="draft-simple with -md",
    )
    draft_max: int = setting(
        16,
        "--draft-max --draft --draft-n --spec-draft-n-max N",
        "Most tokens that -md proposes at a time.",
        type=Whole(1),
    )
    draft_min: int = setting(
        0,
        "--draft-min --draft-n-min --spec-draft-n-min N",
        "Use no proposals of -md that have fewer tokens.",
        type=Whole(0),
    )
    draft_p_min: float = setting(
        0.75,
        "--draft-p-min --spec-draft-p-min P",
        "Least probability of a token that -md proposes.",
        type=Real(),
    )
    n_gpu_layers_draft: int = setting(
        -1,
        "-ngld --n-gpu-layers-draft --gpu-layers-draft --spec-draft-ngl N",
        "How many of the last layers of -md lie on a backend with memory of its own; -1: all.",
        type=Whole(-1),
    )
    ngram_size_n: int = setting(
        3,
        "--spec-ngram-simple-size-n N",
        "Most tokens that ngram-simple compares; with N of 1 the last one alone, else 2 or more.",
        type=Whole(1),
    )
    ngram_size_m: int = setting(
        10,
        "--spec-ngram-simple-size-m N",
        "Most tokens that ngram-simple proposes at a time.",
        type=Whole(1),
    )

    def source(self) -> DraftModel | PromptLookup | None:
        """The argument `draft_model` of `Llama`. Raises click.UsageError, ArgumentError."""
        if self.spec_type == "ngram-simple":
            if self.model_draft is not None:
                raise click.UsageError("-md and --spec-type ngram-simple cannot be used together.")
            from ggmlpy.draft import PromptLookup

            return PromptLookup(self.ngram_size_n, self.ngram_size_m, min(2, self.ngram_size_n))
        if self.model_draft is None:
            if self.spec_type == "draft-simple":
                raise click.UsageError("--spec-type draft-simple needs a draft model: -md FILE.")
            return None
        from ggmlpy.draft import DraftModel

        return DraftModel(
            self.model_draft,
            self.draft_max,
            self.draft_min,
            self.draft_p_min,
            self.n_gpu_layers_draft,
        )


draft_options = group(DraftOptions, "draft", SECTION)
