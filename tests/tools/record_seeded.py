"""Records llama.cpp's results for the tiny seeded models, which tests/models compare with.

    python -m tests.tools.record_seeded --llama-cpp ~/llama.cpp --peer ~/llama/bin/python
    python -m tests.tools.record_seeded … --only gemma      again for some, the others are kept

Writes tests/models/seeded_logits.npz: of each specification of tests/models/seeded_specs the
rows of KEPT_ROWS, and a digest of the model's file. The exit status is 1 if a model has no results,
2 if an option or a specification cannot be used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_logits import N_PROMPT, Peer, PeerError, add_options, selected
from ggmlpy.errors import GgmlpyError
from ggmlpy.models import ARCHITECTURES
from tests.models.seeded import KEPT_ROWS, N_VOCAB, RECORDED, digest_of, write_seeded
from tests.models.seeded_specs import SPECS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        names = selected(SPECS, options.only, "tests/models/seeded_specs")
        check_registered(names)
        peer = Peer.given(options)
        peer.version()
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    kept: dict[str, Any] = dict(np.load(RECORDED)) if RECORDED.exists() else {}
    kept = {key: value for key, value in kept.items() if key.partition("/")[0] in SPECS}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                recorded = record(peer, Path(folder), name)
            except (PeerError, GgmlpyError, ValueError) as error:
                print(f"{name}: {error}", flush=True)
                failed += 1
                continue
            kept = {key: v for key, v in kept.items() if key.partition("/")[0] != name} | recorded
            print(f"{name}: recorded", flush=True)
    np.savez_compressed(RECORDED, **kept)
    return 1 if failed else 0


def check_registered(names: Sequence[str]) -> None:
    """Raise PeerError for a specification of an architecture that there is not."""
    for name in names:
        if SPECS[name].architecture not in ARCHITECTURES:
            raise PeerError(
                f"specification {name}: models/architectures/__init__.py has no line for"
                f" {SPECS[name].architecture!r}"
            )


def record(peer: Peer, folder: Path, name: str) -> dict[str, Any]:
    """What is kept of a specification, by its key in the file.

    Raises PeerError, GgmlpyError, and ValueError for a pattern that matches no tensor.
    """
    model = write_seeded(folder, name, SPECS[name], strict=True)
    found = peer.record(model, model.with_suffix(".npz"), n_vocab=N_VOCAB)
    rows = [row for row in KEPT_ROWS if found.has_memory or row < N_PROMPT]
    return {
        f"{name}/{found.kind}": found.logits[rows].astype(np.float32),
        f"{name}/digest": np.array(digest_of(model)),
    }


if __name__ == "__main__":
    sys.exit(main())
