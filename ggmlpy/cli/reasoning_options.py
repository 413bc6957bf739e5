"""Options of the chat template, and of reasoning before an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.types import Switch, Whole

SECTION = "Template and reasoning"
FORMATS = ("auto", "deepseek", "none")


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """What the template is told, and what becomes of reasoning."""

    template_kwargs: str | None = setting(
        None,
        "--chat-template-kwargs JSON",
        "More variables of the chat template, as a JSON object.",
    )
    reasoning: str = setting(
        "auto",
        "-rea --reasoning on|off|auto",
        "Whether the model reasons before it answers, if its template has enable_thinking; auto: as"
        " the template does it.",
        type=Switch(),
    )
    reasoning_effort: str | None = setting(
        None,
        "--reasoning-effort LEVEL",
        "How much it reasons, if its template has reasoning_effort: low, medium, high and others.",
        show_default="the template's",
    )
    reasoning_format: str = setting(
        "auto",
        "--reasoning-format auto|deepseek|none",
        "What becomes of reasoning: it is apart from the answer, dim on a terminal and not in what"
        " a pipe gets (auto and deepseek), or part of the answer, as the model writes it (none).",
        type=click.Choice(FORMATS),
    )

    reasoning_budget: int = setting(
        -1,
        "--reasoning-budget N",
        "Most tokens of reasoning, after which it is ended; -1: no limit.",
        type=Whole(0, unlimited=-1),
    )

    def as_arguments(self) -> dict[str, Any]:
        """For `create_chat_completion`. Raises click.BadParameter for what is no JSON object."""
        variables: Any = {}
        if self.template_kwargs is not None:
            try:
                variables = json.loads(self.template_kwargs)
            except (ValueError, RecursionError) as error:
                raise click.BadParameter(f"--chat-template-kwargs is not JSON: {error}") from None
            if not isinstance(variables, dict):
                raise click.BadParameter("--chat-template-kwargs must be a JSON object: {…}")
        if self.reasoning != "auto":
            variables["enable_thinking"] = self.reasoning == "on"
        if self.reasoning_effort not in (None, "default"):
            variables["reasoning_effort"] = self.reasoning_effort
        return {
            "chat_template_kwargs": variables,
            "reasoning_format": self.reasoning_format,
            "reasoning_budget": self.reasoning_budget,
        }


reasoning_options = group(ReasoningOptions, "reasoning", SECTION)
