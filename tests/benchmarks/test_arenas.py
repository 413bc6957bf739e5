"""Memory of graphs with and without passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.arenas import N_PROMPT, arenas, table
from benchmarks.models import SHAPES

ROOT = Path(__file__).parents[2]


def test_a_prompts_arena_has_no_products_of_a_gated_unit() -> None:
    shape = SHAPES["tiny"]
    found = {(ubatch, flash): figures for ubatch, flash, figures in arenas("tiny", shape)}
    assert len(found) == 4
    before, after = found[f"prompt of {N_PROMPT}", True]
    row = 4 * N_PROMPT
    # What goes on beside the block and its norm; then two products, or their gated unit alone.
    assert before == row * (2 * shape.n_embd + 2 * shape.n_ff)
    assert after == row * (2 * shape.n_embd + shape.n_ff)


def test_the_table_has_a_row_for_each() -> None:
    assert table(["tiny"]).row_count == 4
    script = [sys.executable, str(ROOT / "benchmarks" / "arenas.py"), "huge"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no shape 'huge'; there are tiny, Llama-3.2-1B" in done.stderr
