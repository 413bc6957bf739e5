"""`ggmlpy tokenize`: text to tokens and back, by the vocabulary of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggmlpy.cli import common, options
from ggmlpy.cli.command import argument, command, flag
from ggmlpy.cli.escapes import unescaped
from ggmlpy.cli.show import write_json
from ggmlpy.common.quoting import printable
from ggmlpy.errors import MissingFile
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.text.tokenizer import Tokenizer


@command
@options.model_file
@argument("gguf", "[FILE]", "A GGUF file; one without weights will do.", **options.file_or_packaged)
@argument("words", "[TEXT]...", "The text; with --decode, the token ids.", nargs=-1, type=str)
@options.prompt
@options.prompt_file
@options.escape
@flag("ids", "--ids", "Only the ids, as a list: [1, 2, 3].")
@flag("no_bos", "--no-bos", "Without the BOS and EOS that the file asks for.")
@flag(
    "special",
    "--special/--no-parse-special",
    "Parse control tokens such as <|im_end|> in the text; show them when decoding.",
)
@flag("decode", "--decode", "From token ids to text.")
@flag("show_count", "--show-count", "Print the number of tokens at the end.")
@options.as_json
def tokenize(
    model: Path | None,
    gguf: Path | None,
    words: tuple[str, ...],
    prompt: str | None,
    file: Path | None,
    escape: bool | None,
    ids: bool,
    no_bos: bool,
    special: bool,
    decode: bool,
    show_count: bool,
    as_json: bool,
) -> None:
    r"""Show the tokens of a text, one per line: the id, and its text.

    The text is given as an argument after the file, with -p or -f, or through a pipe. Without a
    file the tokens are those of the small model in the package. A byte that is no character by
    itself is shown as \xe2. With --decode, a number in the file's place is a token id, unless there
    is a file of that name.

    Examples:
      ggmlpy tokenize -p "Hello, world"
      ggmlpy tokenize model.gguf "Hello, world"
      ggmlpy tokenize model.gguf --ids < text.txt
      ggmlpy tokenize model.gguf --decode 1 15043 3186
      ggmlpy tokenize --decode 1 15043 3186
    """
    from ggmlpy.text.tokenizer import Tokenizer

    if gguf is not None and (model is not None or (decode and _is_ids(gguf))):
        words, gguf = (str(gguf), *words), None  # what would be the file is text
    gguf = gguf if model is None else model
    try:
        tokenizer = Tokenizer.from_gguf(gguf or packaged_model())
    except MissingFile as error:
        if gguf is None or gguf.suffix:
            raise
        raise MissingFile(f"{error}; the file comes before a text, which -p can give too") from None
    text = _given_text(words, prompt, file, escape, decode)
    if decode:
        tokens = _parsed_ids(text)
        decoded = tokenizer.decode_prompt(tokens, special=special)
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


def _given_text(
    words: Sequence[str],
    prompt: str | None,
    file: Path | None,
    escape: bool | None,
    decode: bool,
) -> str:
    """The text from TEXT, -p, -f or a pipe. Raises BadParameter unless it is exactly one."""
    if words:
        if prompt is not None or file is not None:
            raise click.BadParameter("TEXT, -p and -f cannot be used together.")
        if len(words) > 1 and not decode:
            raise click.BadParameter(f"{len(words)} texts are given: put the text in quotes.")
        return " ".join(map(unescaped, words)) if escape else " ".join(words)
    text = common.read_text(prompt, file, escape=escape)
    if text is None:
        if decode:
            raise click.BadParameter("There are no token ids: give them, -p, -f, or a pipe.")
        raise click.BadParameter("There is no text: give TEXT, -p, -f, or a pipe.")
    return text


def _is_ids(path: Path) -> bool:
    """Whether what stands in the file's place are token ids, and not the name of a file."""
    return re.fullmatch(r"[\[\]+\-0-9, ]+", str(path)) is not None and not path.exists()


def _parsed_ids(text: str) -> list[int]:
    """Ids separated by spaces or commas, with or without brackets, as --ids prints them."""
    words = re.sub(r"[\[\],]", " ", text).split()
    for word in words:
        if not re.fullmatch(r"[+-]?[0-9]+", word):
            raise click.BadParameter(f"{word!r} is no token id: it must be an integer.")
    return [int(word) for word in words]


def _visible(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token, on one line."""
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
