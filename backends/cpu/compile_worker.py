"""A process that compiles kernels: `python -m ggmlpy.backends.cpu.compile_worker`.

It reads one JSON object a line and answers each with one line:

    {"isa": {"name": "avx512", ...}, "path": [...]}      once, no answer
    {"module": "...", "name": "...", "symbol": "...", "key": "..."}
        -> {"object": "<base64>"} or {"error": "..."}

numba is imported here and never in the process that runs kernels.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import sys
import traceback
from typing import TextIO

from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import entry_of
from ggmlpy.backends.cpu.key import Keys
from ggmlpy.errors import KernelError


def compile_entry(module: str, name: str, symbol: str, key: str, isa: ISA, keys: Keys) -> bytes:
    """Object code that defines `symbol` as the declared entry `module`.`name`.

    Raises KernelError where the source here is not what the caller has imported: records would not
    fit the code, and the cache would keep it under the key of the other.
    """
    from ggmlpy.backends.cpu import codegen, frontend

    file = importlib.import_module(module).__file__
    entry = entry_of(module, name)
    if keys.key(entry) != key:
        raise KernelError(
            f"{file}, or what it imports, is not what the running process has imported: it has"
            " changed since, or is another copy; start the process again"
        )
    return codegen.object_code(frontend.lower_to_ir(entry, symbol, isa), symbol, isa)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers requests until there are no more."""
    setup = json.loads(requests.readline())
    sys.path[:] = setup["path"]
    isa = ISA.from_json(setup["isa"])
    keys = Keys(isa)
    for line in requests:
        try:
            code = compile_entry(**json.loads(line), isa=isa, keys=keys)
            answer = {"object": base64.b64encode(code).decode()}
        except Exception:  # whatever numba or a kernel's module raises is the answer
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an imported module prints
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
