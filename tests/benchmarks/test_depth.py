"""The depth benchmark: sequences of that length, each with its own cells. Nothing is timed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import depth as module
from benchmarks.depth import Row, measure, prompt_states, show
from ggmlpy.bench import Setup, timed_steps, weight_bytes
from ggmlpy.context import Context
from ggmlpy.gguf_file import GGUFFile
from tests.models.tiny import Tiny, write_model

REFERENCE = Setup(backend="reference", n_batch=4)
KV_BYTES = 2 * 2 * 2 * 16 * 2  # of a token in Tiny(): layers, K and V, heads, head size, f16


@pytest.fixture
def file(tmp_path: Path) -> GGUFFile:
    return GGUFFile.open(write_model(tmp_path / "tiny.gguf", Tiny()))


def test_every_sequence_is_at_the_depth(file: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noting(context: Context, n_seqs: int, n_steps: int) -> list[float]:
        lengths = [context.n_past(seq) for seq in range(n_seqs)]
        seen.append((context.sizes.unified, lengths, context.memory.n_used()))
        read.append(weight_bytes(file, context))
        return timed_steps(context, n_seqs, n_steps)

    read: list[int] = []
    monkeypatch.setattr(module, "timed_steps", noting)
    rows = measure(file, REFERENCE, 3, [9, 0], 4, lambda text: None)
    assert seen == [
        (unified, [depth] * 3, 3 * depth) for unified in (False, True) for depth in (9, 0)
    ]
    assert [(row.depth, row.kv_unified) for row in rows] == [
        (9, False), (0, False), (9, True), (0, True),
    ]  # fmt: skip
    assert [len(row.steps_s) for row in rows] == [4] * 4
    # Steps 2 to 5 see 2 to 5 tokens more: 3.5 in the middle.
    assert rows[0].bytes_read == read[0] + 3 * (9 + 3) * KV_BYTES
    assert rows[3].bytes_read == read[0] + 3 * (0 + 3) * KV_BYTES


def test_states_are_those_of_one_sequence_at_each_length(file: GGUFFile) -> None:
    states = prompt_states(file, REFERENCE, [0, 3, 9])
    assert [list(s.layers[0].positions) for s in states.values()] == [
        [], [0, 1, 2], list(range(9)),
    ]  # fmt: skip
    assert (states[3].layers[1].k == states[9].layers[1].k[:3]).all()


def test_the_table_holds_a_step_against_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row(512, False, 4, [0.1, 0.2, 0.9], bytes_read=10**9),
        Row(512, True, 4, [0.3], bytes_read=10**9),
    ]
    show(rows, 10e9)
    lines = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    assert cells == ["512", "200.00", "20.0", "2.00", "300.00", "13.3", "3.00", "1.50"]
    assert len({len(line) for line in lines}) == 1
