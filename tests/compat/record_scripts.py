"""Records what llama-cpp-python gives the scripts of `user_scripts.py`, as scripts.json.

    PYTHONPATH=. python tests/compat/record_scripts.py ggmlpy/data/stories.gguf

in an environment with llama-cpp-python 0.3.36 and diskcache.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.compat.user_scripts import SCRIPTS


def rounded(value: Any) -> Any:
    """With numbers of seven digits; numpy's scalars, which some results have, are Python's."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}")
    return int(value) if isinstance(value, np.integer) else value


def record(model: str) -> dict[str, Any]:
    llama_cpp = import_module("llama_cpp")
    found = {}
    for name, script in SCRIPTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = rounded(script(llama_cpp, model, Path(folder)))
    return found


if __name__ == "__main__":
    text = json.dumps(record(sys.argv[1]), separators=(",", ":"))
    Path(__file__).with_name("scripts.json").write_text(text + "\n")
