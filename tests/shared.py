"""Where the optional reference data lies: models, vocabularies and other engines' results.

The folder is not part of the repository. A test that needs it skips, with this reason, elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"
ROOT = Path(os.environ.get("GGMLPY_TEST_DATA", _DEFAULT))


def shared_path(name: str) -> Path:
    """The path of a reference file; skips the calling test where the file is absent."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"reference data {name} is not here (set GGMLPY_TEST_DATA to its folder)")
    return path
