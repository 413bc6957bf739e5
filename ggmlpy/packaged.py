"""The model that comes with ggmlpy: tells little stories; trained by the scripts in training/."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ggmlpy.errors import MissingFile


def packaged_model() -> Path:
    """Its path. Raises MissingFile where an installation left it out."""
    path = Path(str(files("ggmlpy") / "data" / "stories.gguf"))
    if not path.is_file():
        raise MissingFile(f"{path.name}: this installation has no model of its own; name one: -m")
    return path
