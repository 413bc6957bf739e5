"""Options that say where a text ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggmlpy.cli.escapes import unescaped
from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.types import Predicted, Whole

NO_LIMIT = -1
UNTIL_FULL = -2


def context_shift_setting() -> Any:
    """Whether a full context ends a text."""
    return setting(
        False,
        "--context-shift/--no-context-shift",
        "A full context loses the older half of its tokens, and the text goes on; else it ends.",
        show_default=False,
    )


def keep_setting() -> Any:
    """What of a prompt is not lost then."""
    return setting(
        0,
        "--keep N",
        "Tokens of the prompt that --context-shift never loses, besides BOS; -1: all.",
        type=Whole(0, unlimited=-1),
    )


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Where a text ends, and what becomes of a full context."""

    n_predict: int | None = setting(
        None,
        "-n --predict --n-predict N",
        "Most tokens to generate; 0: none, the prompt is only run, as for --prompt-cache; -1: until"
        " the text ends or the context is full; -2: the same, also with --context-shift.",
        type=Predicted(),
        show_default="128 in generate, -1 in chat",
    )
    stop: tuple[str, ...] = setting(
        (),
        "-r --stop --reverse-prompt TEXT",
        "End before this text. Can be given several times.",
        multiple=True,
        show_default=False,
    )
    context_shift: bool = context_shift_setting()
    n_keep: int = keep_setting()

    def as_arguments(self, default_n: int, escape: bool | None) -> dict[str, Any]:
        """For `create_completion`. `escape` False: stop strings are taken as they are."""
        n = default_n if self.n_predict is None else self.n_predict
        return {
            "max_tokens": n if n >= 0 else None,
            "stop": [text if escape is False else unescaped(text) for text in self.stop],
            "context_shift": self.context_shift and n != UNTIL_FULL,
            "n_keep": self.n_keep,
        }


text_options = group(TextOptions, "ending", "Options")
