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

from tests.compat.compared import plain
from tests.compat.user_scripts import SCRIPTS


def record(model: str) -> dict[str, Any]:
    llama_cpp = import_module("llama_cpp")
    found = {}
    for name, script in SCRIPTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = plain(script(llama_cpp, model, Path(folder)))
    return found


if __name__ == "__main__":
    text = json.dumps(record(sys.argv[1]), separators=(",", ":"))
    Path(__file__).with_name("scripts.json").write_text(text + "\n")
