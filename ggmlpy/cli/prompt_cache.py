"""Options that keep a prompt's state in a file, so that it is not run again the next time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggmlpy.cli import common
from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.guard import complain
from ggmlpy.cli.options import FILE
from ggmlpy.common.prefix import n_common
from ggmlpy.common.quoting import printable
from ggmlpy.errors import FileError

if TYPE_CHECKING:
    from ggmlpy.llama import Llama

SECTION = "Prompt cache"


@dataclass(frozen=True, slots=True)
class PromptCacheOptions:
    """The file, and what is written to it."""

    prompt_cache: Path | None = setting(  # noqa: RUF009 - as in all groups
        None,
        "--prompt-cache FILE",
        "Keep the state of the prompt in a file: a prompt that begins like the one in it runs what"
        " is new. Without a prompt the one in the file goes on.",
        type=FILE,
    )
    prompt_cache_all: bool = setting(
        False, "--prompt-cache-all", "Keep the generated text too.", is_flag=True
    )
    prompt_cache_ro: bool = setting(False, "--prompt-cache-ro", "Read the file only.", is_flag=True)

    def __post_init__(self) -> None:
        if self.prompt_cache is None and (self.prompt_cache_all or self.prompt_cache_ro):
            raise click.UsageError("--prompt-cache FILE names the file of the prompt cache.")

    def load(self, llm: Llama, *, goes_on: bool) -> list[int]:
        """Load the file if it exists, and return its tokens. Raises what `load_state` raises.

        Raises FileError for a file without tokens that the text `goes_on` from.
        """
        if self.prompt_cache is None:
            return []
        if not self.prompt_cache_ro:
            common.check_writable(self.prompt_cache)
        if not self.prompt_cache.exists():
            return []
        llm.load_state(self.prompt_cache)
        held = llm.held_tokens.get(0, [])
        if goes_on and not held:
            name = printable(self.prompt_cache.name)
            raise FileError(f"{name}: the file has no tokens that a text could go on from: give -p")
        return held

    def keep_prompt(self, llm: Llama, loaded: Sequence[int]) -> None:
        """Write the file once the prompt was run, if it has more than was loaded."""
        if self.prompt_cache is None or self.prompt_cache_ro or self.prompt_cache_all:
            return
        held = llm.held_tokens.get(0, [])
        if n_common(held, loaded) < len(held):
            llm.save_state(self.prompt_cache)

    def keep_text(self, llm: Llama, n_run: int) -> None:
        """Write the file when the text is complete, of which `n_run` tokens have been run.

        Warns where the context was shifted: what was moved is no prefix of another prompt.
        """
        if self.prompt_cache is None or not self.prompt_cache_all or self.prompt_cache_ro:
            return
        llm.save_state(self.prompt_cache)
        n_kept = len(llm.held_tokens.get(0, []))
        if n_kept < n_run and n_run >= llm.n_ctx_seq():
            complain(
                "warning",
                f"the context was shifted: the prompt cache keeps {n_kept} of {n_run} tokens,"
                " the first ones",
            )


prompt_cache_options = group(PromptCacheOptions, "cached", SECTION)
