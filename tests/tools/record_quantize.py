"""Records the bytes and types of llama.cpp's quantisation, which tests/quantize compares with.

    python -m tests.tools.record_quantize --llama-cpp DIR

DIR is a folder llama.cpp with a build in build/bin (shared libraries, llama-quantize,
llama-imatrix). Writes tests/quantize/recorded.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ggmlpy import packaged_model
from ggmlpy.graph.types import TYPES as TENSOR_TYPES
from ggmlpy.quantize import FILE_TYPES, Imatrix
from tests.quantize import peer

WHOLE = ("F16", "Q4_K_M", "Q3_K_M", "Q2_K", "IQ4_XS", "Q5_1")
_LINE = re.compile(r"\[ *\d+/ *\d+\] +(\S+) +- \[.*\], type = +(\w+), size = .* MiB(?: \((\w+)\))?")


def rows(library: ctypes.CDLL) -> dict[str, str]:
    """Digests of rows, by type, kind and importance."""
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    quantize.argtypes += [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    found = {}
    for name in peer.TYPES:
        for kind in peer.KINDS:
            for weights in peer.importances_of(name):
                type, x, w = TENSOR_TYPES[name], peer.rows(kind), peer.importance(weights)
                out = np.zeros((len(x), type.row_bytes(x.shape[1])), np.uint8)
                quantize(
                    type.id, x.ctypes.data, out.ctypes.data, 0, *x.shape,
                    None if w is None else w.ctypes.data,
                )  # fmt: skip
                found[f"{name} {kind} {weights}"] = peer.digest(out)
    return found


def types(tools: Path, folder: Path) -> dict[str, Any]:
    """Types of the tensors of skeletons, by model and file type, in the order of the file."""
    found: dict[str, Any] = {}
    for name in peer.SKELETONS:
        path = peer.write_skeleton(folder, name)
        for kind in FILE_TYPES:
            ran = subprocess.run(
                [tools / "llama-quantize", "--dry-run", path, kind],
                capture_output=True,
                text=True,
                check=False,
            )
            lines = [_LINE.search(line) for line in (ran.stdout + ran.stderr).splitlines()]
            chosen = [m[3] or m[2] for m in lines if m is not None]
            found[f"{name} {kind}"] = "refused" if ran.returncode else peer.digest_of(chosen)
    return found


def models(tools: Path, folder: Path) -> dict[str, str]:
    """Digests of the packaged model in other types."""
    found = {}
    for kind in WHOLE:
        out = folder / "out.gguf"
        arguments = ["--allow-requantize", str(packaged_model()), str(out), kind]
        subprocess.run([tools / "llama-quantize", *arguments], capture_output=True, check=True)
        found[kind] = peer.digest(out.read_bytes())
    return found


def imatrix(tools: Path, folder: Path) -> dict[str, Any]:
    """For each weight of the packaged model, the sum of its squares on a text, and the tokens."""
    text, out = folder / "text.txt", folder / "imatrix.gguf"
    text.write_text(peer.TEXT)
    arguments = ["-m", str(packaged_model()), "-f", str(text), "-o", str(out), "--process-output"]
    arguments += ["-c", str(peer.N_CTX), "-b", str(peer.N_CTX), "--no-ppl"]
    subprocess.run([tools / "llama-imatrix", *arguments], capture_output=True, check=True)
    found = Imatrix.load(out)
    sums = {n: [float(e.sums.sum()), int(e.counts[0])] for n, e in found.entries.items()}
    return {"chunks": found.n_chunks, "sums": sums}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--llama-cpp", type=Path, required=True)
    tools = parser.parse_args().llama_cpp / "build/bin"
    library = ctypes.CDLL(str(tools / "libggml-base.so"))
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "rows": rows(library),
            "types": types(tools, Path(folder)),
            "models": models(tools, Path(folder)),
            "imatrix": imatrix(tools, Path(folder)),
        }
    peer.RECORDED.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
