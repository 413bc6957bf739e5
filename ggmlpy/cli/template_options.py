"""Options of a chat template in place of the file's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggmlpy.cli.common import read_text
from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.options import FILE

if TYPE_CHECKING:
    from ggmlpy.gguf.overrides import Scalar


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The template, or the file that has it."""

    template: str | None = setting(
        None,
        "--chat-template NAME|TEMPLATE",
        "A chat template in jinja2, or the name of one, such as chatml, llama3 or gemma.",
        show_default="the file's",
    )
    template_file: Path | None = setting(  # noqa: RUF009 - as in all groups
        None, "--chat-template-file FILE", "Read the chat template from a file.", type=FILE
    )

    def overrides(self) -> dict[str, Scalar]:
        """Of metadata, what puts the template in place of the file's. Raises TemplateError,
        FileError."""
        if self.template is None and self.template_file is None:
            return {}
        if self.template is not None and self.template_file is not None:
            raise click.UsageError(
                "--chat-template and --chat-template-file cannot be used together."
            )
        from ggmlpy.text.named_templates import template_source

        source = read_text(self.template, self.template_file, escape=False) or ""
        return {"tokenizer.chat_template": template_source(source)}


template_options = group(TemplateOptions, "template", "Template and reasoning")
