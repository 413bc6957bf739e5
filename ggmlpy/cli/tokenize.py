"""`ggmlpy tokenize`: text to tokens and back, by the vocabulary of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggmlpy.cli import common, options
from ggmlpy.cli.options import option
from ggmlpy.cli.show import write_json
from ggmlpy.common.quoting import printable

if TYPE_CHECKING:
    from ggmlpy.text.tokenizer import Tokenizer


def tokenize(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", show_default=False, help="A GGUF file; one without weights will do."
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", show_default=False, help="The text; with --decode, the token ids."
        ),
    ] = None,
    prompt: options.Prompt = None,
    text_file: options.PromptFile = None,
    ids: Annotated[bool, option("--ids", "Only the ids, as a list: [1, 2, 3].")] = False,
    no_bos: Annotated[
        bool, option("--no-bos", "Without the BOS and EOS that the file asks for.")
    ] = False,
    special: Annotated[
        bool,
        option(
            "--special",
            "Control tokens such as <|im_end|> in the text are that; shown when decoding.",
        ),
    ] = False,
    decode: Annotated[bool, option("--decode", "The other way: from token ids to text.")] = False,
    show_count: Annotated[
        bool, option("--show-count", "Tell the number of tokens at the end.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    r"""Show the tokens of a text, one a line: the id, and what it stands for.

    The text is given as an argument, with -p or -f, or through a pipe. A byte that is no
    character by itself is shown as \xe2.

    Examples:
      ggmlpy tokenize model.gguf "Hello, world"
      ggmlpy tokenize model.gguf --ids < text.txt
      ggmlpy tokenize model.gguf --decode 1 15043 3186
    """
    from ggmlpy.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(file)
    text = _given_text(words or [], prompt, text_file, decode)
    if decode:
        tokens = _parsed_ids(text)
        decoded = tokenizer.decode(tokens, special=special)
        if as_json:
            write_json({"ids": tokens, "text": decoded})
        else:
            print(decoded)
        return
    tokens = tokenizer.encode(text, add_bos=not no_bos, special=special)
    if as_json:
        _write_json(tokenizer, tokens, ids)
    elif ids:
        print(tokens)
    else:
        for token in tokens:
            print(f"{token:6d} -> '{_visible(tokenizer, token)}'")
    if show_count and not as_json:
        print(f"Total number of tokens: {len(tokens)}")


def _given_text(words: Sequence[str], prompt: str | None, file: Path | None, decode: bool) -> str:
    """The one text that there is, from wherever it is given."""
    if words:
        if prompt is not None or file is not None:
            raise typer.BadParameter("TEXT, -p and -f exclude each other.")
        if len(words) > 1 and not decode:
            raise typer.BadParameter(f"{len(words)} texts are given: put the text in quotes.")
        return " ".join(words)
    text = common.read_text(prompt, file)
    if text is None:
        raise typer.BadParameter("There is no text: give TEXT, -p, -f, or a pipe.")
    return text


def _parsed_ids(text: str) -> list[int]:
    """Ids separated by spaces or commas, with or without brackets: what --ids prints, too."""
    found = re.sub(r"[\[\],]", " ", text).split()
    try:
        return [int(word) for word in found]
    except ValueError as error:
        raise typer.BadParameter(f"Token ids are whole numbers: {error}.") from None


def _visible(tokenizer: Tokenizer, token: int) -> str:
    """What the token adds to the text, on one line."""
    return printable(tokenizer.token_bytes(token, special=True).decode(errors="backslashreplace"))


def _write_json(tokenizer: Tokenizer, tokens: list[int], only_ids: bool) -> None:
    if only_ids:
        write_json(tokens)
        return
    for token in tokens:
        raw = tokenizer.token_bytes(token, special=True)
        type = tokenizer.token_type(token).name.lower()
        write_json(
            {"id": token, "piece": raw.decode(errors="replace"), "bytes": list(raw), "type": type}
        )
