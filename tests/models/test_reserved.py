"""Memory of steps on a device: taken when weights are loaded, none is taken by the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.mock.memory import MockBuffer, MockMemory
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from tests.models.tiny import Tiny, write_model

pytestmark = pytest.mark.placed


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("n_gpu_layers", [1, -1])
def test_no_step_and_no_shift_allocates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unified: bool, n_gpu_layers: int
) -> None:
    monkeypatch.setattr("ggmlpy.memory.cell_table.KV_PAD", 16)
    model = load_model(GGUFFile.open(write_model(tmp_path / "tiny.gguf", Tiny())))
    context = Context(
        model, [MockBackend(), ReferenceBackend()], n_ctx=128, n_seq_max=2, n_ubatch=32,
        kv_unified=unified, n_gpu_layers=n_gpu_layers,
    )  # fmt: skip
    context.load_weights()
    taken: list[int] = []
    allocate = MockMemory._allocate

    def counting(self: MockMemory, n_bytes: int) -> MockBuffer:
        taken.append(n_bytes)
        return allocate(self, n_bytes)

    monkeypatch.setattr(MockMemory, "_allocate", counting)
    for n in (1, 2, 5, 11, 32):
        context.decode(list(range(n)), all_logits=True)
        context.decode([3], seq=1)
        context.seq_rm(0, context.n_past() - 1)
        context.seq_add(0, 0, None, 1)
    assert taken == []
