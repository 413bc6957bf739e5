"""Records llama.cpp's logits of tiny seeded models with LoRA adapters and control vectors.

    python -m tests.tools.record_changed --llama-cpp ~/llama.cpp --peer ~/llama/bin/python

Writes tests/models/changed_logits.npz: of each model of CHANGED, with what `write_changes` writes,
the rows of KEPT_ROWS. The exit status is 1 if a model has no results, 2 if an option cannot be
used.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peer_logits import Peer, PeerError, add_options, selected
from ggmlpy.gguf import GGUFFile
from tests.adapters import write_adapter, write_control_vector
from tests.models.seeded import KEPT_ROWS, N_VOCAB, write_seeded
from tests.models.seeded_specs import SPECS

RECORDED = Path(__file__).parents[1] / "models" / "changed_logits.npz"
CHANGED = (
    "llama", "llama-experts", "mamba", "phi3", "qwen3", "qwen3moe", "smollm3", "stablelm",
)  # fmt: skip
NAMES = r"(blk\.\d+\.(attn|ffn|ssm)_(?!.*(norm|conv)).*|output)\.weight"
SCALES = (0.5, -0.75)


@dataclass(frozen=True)
class Changes:
    """The files of one model, and the control vector in them, [n_layer - 1, n_embd]."""

    model: Path
    adapters: tuple[Path, Path]
    control: Path
    directions: NDArray[np.float32]


def write_changes(folder: Path, name: str) -> Changes:
    """A model, two adapters and a control vector."""
    model = write_seeded(folder, name, SPECS[name])
    with GGUFFile.open(model) as file:
        matrices = [n for n, t in file.tensors.items() if re.fullmatch(NAMES, n) and t.ne[1] > 1]
    names = "|".join(map(re.escape, matrices))
    a = write_adapter(folder / "a.gguf", model, seed=1, names=names)
    b = write_adapter(folder / "b.gguf", model, seed=2, names=names, rank=3, alpha=0)
    control = folder / "control.gguf"
    return Changes(model, (a.path, b.path), control, write_control_vector(control, model, seed=3))


def record(peer: Peer, folder: Path, name: str) -> dict[str, Any]:
    """What is kept of a model, by its key in the file. Raises PeerError."""
    files = write_changes(folder, name)
    out, control = folder / f"{name}.npz", folder / f"{name}.npy"
    np.save(control, files.directions)
    lora = list(zip(files.adapters, SCALES, strict=True))
    rows = list(KEPT_ROWS)
    return {
        f"{name}/lora": peer.record(files.model, out, n_vocab=N_VOCAB, lora=lora).logits[rows],
        f"{name}/control": peer.record(files.model, out, n_vocab=N_VOCAB, control=control).logits[
            rows
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        names = selected(CHANGED, options.only, "CHANGED")
        peer = Peer.given(options)
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    kept: dict[str, Any] = dict(np.load(RECORDED)) if RECORDED.exists() else {}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                kept |= record(peer, Path(folder), name)
            except PeerError as error:
                print(f"{name}: {error}", flush=True)
                failed += 1
            else:
                print(f"{name}: recorded", flush=True)
    np.savez_compressed(RECORDED, **kept)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
