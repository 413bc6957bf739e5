"""Records llama.cpp's logits with quantised K and V, which it rotates, of a few seeded models.

    python -m tests.tools.record_kv_rotation --llama-cpp ~/llama.cpp --peer ~/llama/bin/python

Writes tests/models/kv_rotation_logits.npz: of each model and type the rows of KEPT_ROWS, and a
digest of the model's file. The exit status is 2 if something cannot be used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_logits import Peer, PeerError, add_options, selected
from tests.models.seeded import KEPT_ROWS, Seeded, digest_of, write_seeded
from tests.models.seeded_specs.keys import POST_NORMS, QK_NORMS, spec

RECORDED = Path(__file__).parents[1] / "models" / "kv_rotation_logits.npz"
TYPES = ("q8_0", "q5_1", "q4_0")


def _heads(n: int) -> dict[str, Any]:
    return {"attention.key_length": n, "attention.value_length": n}


MODELS: dict[str, Seeded] = {
    "heads-64": spec("llama", keys=_heads(64) | {"rope.dimension_count": 64}),
    "heads-128": spec("llama", keys=_heads(128) | {"rope.dimension_count": 128}),
    "heads-192": spec("qwen3", QK_NORMS, _heads(192), shapes={QK_NORMS: (192,)}),
    "windows": spec(
        "gemma3",
        f"{POST_NORMS}|{QK_NORMS}",
        _heads(128) | {"block_count": 7, "attention.sliding_window": 7},
        shapes={QK_NORMS: (128,)},
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    options = parser.parse_args(arguments)
    kept: dict[str, Any] = dict(np.load(RECORDED)) if RECORDED.exists() else {}
    try:
        peer = Peer.given(options)
        with tempfile.TemporaryDirectory() as folder:
            for name in selected(MODELS, options.only, "tests/tools/record_kv_rotation.py"):
                model = write_seeded(Path(folder), name, MODELS[name])
                kept[f"{name}/digest"] = np.array(digest_of(model))
                for type in TYPES:
                    found = peer.record(model, model.with_suffix(".npz"), type)
                    kept[f"{name}/{type}"] = found.logits[list(KEPT_ROWS)].astype(np.float32)
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    np.savez_compressed(RECORDED, **kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
