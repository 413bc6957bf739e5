"""Records llama.cpp's results for the tiny seeded models, which tests/models compare with.

    python -m tests.tools.record_seeded --llama-cpp ~/llama.cpp --peer ~/llama/bin/python
    python -m tests.tools.record_seeded … --only gemma      again for some, the others are kept

Writes tests/models/seeded_logits.npz: of each specification of tests/models/seeded_specs the
rows of KEPT_ROWS, and a digest of the model's file. The exit status is 1 if a model has no results.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peer_logits import Peer, PeerError
from tests.models.seeded import KEPT_ROWS, RECORDED, digest_of, write_seeded
from tests.models.seeded_specs import SPECS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-cpp", type=Path, required=True, help="its sources, built")
    parser.add_argument("--peer", type=Path, default=Path(sys.executable), help="its interpreter")
    parser.add_argument("--bindings", type=Path, help="the folder of the package llama_cpp")
    parser.add_argument("--only", default="", metavar="REGEX", help="some specifications")
    options = parser.parse_args(arguments)
    bindings = options.bindings or options.llama_cpp.resolve().parents[1]
    peer = Peer(options.llama_cpp, options.peer, bindings)
    kept = dict(np.load(RECORDED)) if RECORDED.exists() else {}
    names = {name for name in SPECS if re.search(options.only, name)}
    kept = {key: v for key, v in kept.items() if key.partition("/")[0] in SPECS.keys() - names}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(names):
            model = write_seeded(Path(folder), name, SPECS[name])
            try:
                found = peer.record(model, model.with_suffix(".npz"))
            except PeerError as error:
                print(f"{name}: {error}", flush=True)
                failed += 1
                continue
            rows = [row for row in KEPT_ROWS if found.has_memory or row < 37]
            kept[f"{name}/{found.kind}"] = found.logits[rows].astype(np.float32)
            kept[f"{name}/digest"] = np.array(digest_of(model))
            print(f"{name}: {found.kind} of {len(rows)} tokens", flush=True)
    np.savez_compressed(RECORDED, **kept)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
