"""The packaged model, which writes short stories. The scripts in training/ trained it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ggmlpy.errors import MissingFile


def packaged_model() -> Path:
    """The path of the packaged model. Raises MissingFile if it is not installed."""
    path = Path(str(files("ggmlpy") / "data" / "stories.gguf"))
    if not path.is_file():
        raise MissingFile(f"{path.name}: this installation has no packaged model: name a file")
    return path
