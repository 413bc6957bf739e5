"""Records llama.cpp's logits of small models, for tests that run without llama.cpp.

    python -m tests.tools.record_logits FOLDER --llama-cpp ~/llama.cpp --peer ~/llama/bin/python

Writes `NAME.npz` beside each `NAME.gguf` of the folder: its tokens and the logits of all of them,
by the code with which benchmarks/llama_archs.py compares (benchmarks/peer_logits.py). Tests read
them with `benchmarks.peer_logits.Recording.load`. The exit status is 1 if a file has no logits, 2
if an option cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peer_logits import Peer, PeerError, add_options, selected


def record(peer: Peer, model: Path) -> str:
    """Write the recording of a model; what became of it, or why there is none."""
    out = model.with_suffix(".npz")
    try:
        recording = peer.record(model, out)
    except PeerError as error:
        return f"no logits: {error}"
    if not np.isfinite(recording.logits).all():
        out.unlink()
        return "no logits: they are not finite"
    return f"{recording.kind} {list(recording.logits.shape)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of GGUF files")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        files = {path.stem: path for path in options.folder.glob("*.gguf")}
        models = [files[name] for name in selected(files, options.only, str(options.folder))]
        peer = Peer.given(options)
        peer.version()
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    outcomes = {}
    for model in models:
        outcomes[model] = record(peer, model)
        print(f"{model.name}: {outcomes[model]}", flush=True)
    has_all = not any(each.startswith("no logits") for each in outcomes.values())
    return 0 if has_all else 1


if __name__ == "__main__":
    sys.exit(main())
