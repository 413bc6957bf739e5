"""Paths of model files as users give them, and what a path that leads nowhere may mean."""

from __future__ import annotations

import os
import re
from os import PathLike
from pathlib import Path

from ggmlpy.common.quoting import printable
from ggmlpy.errors import MissingFile
from ggmlpy.hub.names import is_gguf, is_repo

AnyPath = str | bytes | PathLike[str] | PathLike[bytes]

_URL = re.compile(r"[a-z][a-z0-9+.-]*:/+", re.IGNORECASE)  # pathlib makes one slash of two


def path_of(given: AnyPath) -> Path:
    """A path, with a leading ~ expanded. Raises MissingFile for an empty one."""
    text = os.fsdecode(given)
    if not text:
        raise MissingFile("the name of the model file is empty")
    path = Path(text)
    if text.startswith("~") and not path.exists():
        try:
            return path.expanduser()
        except RuntimeError:  # there is no such user
            return path
    return path


def missing(path: Path) -> MissingFile:
    """The error for a file that is not there, with a hint if the path is another kind of name."""
    text = printable(str(path))
    if _URL.match(text):
        text = re.sub(":/+", "://", text, count=1)
        return MissingFile(
            f"{text}: this is a URL, not a file: -mu (--model-url) downloads it, and -hf USER/REPO"
            " or Llama.from_pretrained a model from a hub"
        )
    repo, _, quant = text.partition(":")
    hint = ""
    if is_repo(repo) and (quant or not is_gguf(repo)) and not path.parent.exists():
        hint = f"; -hf {text} or Llama.from_pretrained({text!r}) downloads it from a hub"
    where = printable(str(path.parent))
    return MissingFile(f"{printable(path.name)}: there is no such file in {where}{hint}")
