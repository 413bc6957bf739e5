"""Options that ask for structured output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggmlpy.cli import common
from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.options import FILE

if TYPE_CHECKING:
    from ggmlpy.grammar import Grammar

SECTION = "Structured output"


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """What the text must be; at most one of them."""

    grammar: str | None = setting(
        None, "--grammar GRAMMAR", "What the text must be, in GBNF; in Lark after %llguidance {}."
    )
    grammar_file: Path | None = setting(  # noqa: RUF009 - as in all groups
        None, "--grammar-file FILE", "Read that from a file.", type=FILE
    )
    json_schema: str | None = setting(
        None, "-j --json-schema SCHEMA", "JSON that a schema describes; {} is any JSON."
    )
    json_schema_file: Path | None = setting(  # noqa: RUF009
        None, "-jf --json-schema-file FILE", "Read the schema from a file.", type=FILE
    )

    def made(self) -> Grammar | None:
        """The grammar. Raises GrammarError, FileError, and click.BadParameter for two of them."""
        given = [self.grammar, self.grammar_file, self.json_schema, self.json_schema_file]
        if sum(value is not None for value in given) > 1:
            raise click.BadParameter(
                "--grammar, --grammar-file, -j and -jf cannot be used together."
            )
        from ggmlpy.grammar import Grammar

        if self.grammar is not None or self.grammar_file is not None:
            return Grammar.of(common.read_text(self.grammar, self.grammar_file) or "")
        if self.json_schema is not None or self.json_schema_file is not None:
            return Grammar.json_schema(
                common.read_text(self.json_schema, self.json_schema_file) or ""
            )
        return None


grammar_options = group(GrammarOptions, "form", SECTION)
