"""Records what llama-embedding gives for a model with f32 weights.

    ggmlpy quantize --allow-requantize ggmlpy/data/stories.gguf stories-f32.gguf F32
    python tests/tools/record_embeddings.py llama-embedding stories-f32.gguf

Writes tests/cli/peer_embeddings.json: of each embedding the first numbers. The program, of
llama-cpp-python 0.3.36, sometimes loses the end of what it writes, and is called again then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "cli" / "peer_embeddings.json"
TEXTS = ["A cat sleeps in the sun.", "A dog", "The sea is deep"]
CASES = [
    ("none", 2),
    *((pooling, 2) for pooling in ("mean", "cls", "last")),
    *(("mean", norm) for norm in (-1, 0, 1, 3)),
]
N_KEPT = 6
N_EMBD = 256


def rows_of(program: str, model: str, pooling: str, norm: int) -> list[list[str]]:
    command = [
        *(program, "-m", model, "-c", "512", "-p", "\n".join(TEXTS), "--pooling", pooling),
        *("--embd-normalize", str(norm), "--embd-output-format", "raw"),
        *("-ctk", "f32", "-ctv", "f32", "-fa", "off"),
    ]
    for _ in range(30):
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in out.splitlines() if line]
        is_whole = len(rows) > len(TEXTS) if pooling == "none" else len(rows) == len(TEXTS)
        if is_whole and {len(row) for row in rows} == {N_EMBD}:
            return rows
    raise RuntimeError(f"{program} wrote nothing whole for {pooling}, {norm}")


def main() -> None:
    program, model = sys.argv[1:]
    found = [
        [pooling, norm, [row[:N_KEPT] for row in rows_of(program, model, pooling, norm)]]
        for pooling, norm in CASES
    ]
    text = json.dumps({"texts": TEXTS, "cases": found}, separators=(",", ":"))
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
