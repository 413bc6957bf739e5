"""Memory that graphs of real shapes run in, with and without passes. Nothing is computed.

    python benchmarks/arenas.py [Llama-3.2-1B ...]

For each shape a prompt of 512 tokens, and a token after 512, on the CPU, with weights of q4_0. The
file of the model has holes for weights, so that it takes no room on disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks.models import SHAPES, ModelShape, write_model
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.describe import megabytes
from ggmlpy.runtime.preview import build_graph
from ggmlpy.sched.allocator import allocate
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.executable import scheduled

N_PROMPT = 512
UBATCHES = {f"prompt of {N_PROMPT}": (N_PROMPT, 0), f"token after {N_PROMPT}": (1, N_PROMPT)}


def arenas(name: str, shape: ModelShape) -> Iterator[tuple[str, bool, tuple[int, int]]]:
    """Of each ubatch, with flash attention and without: bytes without passes and with all."""
    backends = backends_for("cpu")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, name, shape, "q4_0", hollow=True)
        model = load_model(GGUFFile.open(path))
        for ubatch, (n_tokens, n_past) in UBATCHES.items():
            for flash_attn in (True, False):
                graph = build_graph(model, n_tokens, n_past, flash_attn=flash_attn)
                before, after = (
                    allocate(graph, scheduled(graph, backends, passes=passes).splits).arena_bytes
                    for passes in ("none", "all")
                )
                yield ubatch, flash_attn, (sum(before.values()), sum(after.values()))


def table(names: Sequence[str]) -> Table:
    made = Table("shape", "ubatch", "attention", "without passes", "with passes")
    for name in names:
        for ubatch, flash_attn, figures in arenas(name, SHAPES[name]):
            attention = "flash" if flash_attn else "separate ops"
            made.add_row(name, ubatch, attention, *map(megabytes, figures))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("shapes", nargs="*", metavar="shape", help=", ".join(SHAPES))
    names = parser.parse_args().shapes or ["Llama-3.2-1B"]
    unknown = [name for name in names if name not in SHAPES]
    if unknown:
        parser.error(f"there is no shape {unknown[0]!r}; there are {', '.join(SHAPES)}")
    Console().print(table(names))


if __name__ == "__main__":
    main()
