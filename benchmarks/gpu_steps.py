"""Steps of Llama-3-8B as the CUDA backend plans them for an H100, without a GPU."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_executed import Cells
from benchmarks.gpu_launches import PlannedDriver
from benchmarks.models import ModelShape, write_model
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.builder import Prepared
from ggmlpy.backends.null import NullBackend
from ggmlpy.errors import BackendError
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context

# Its embedding and its output matrix are two, here they are one: a step reads as many bytes.
LLAMA_3_8B = ModelShape("llama", 32, 4096, 32, 8, 128, 14_336, 128_256, 8192, 5e5, 1e-5)
PROMPT = 512
MOST_CELL_BYTES = 40 << 30  # of K and V, beside weights of 16 GB


@dataclass(frozen=True, slots=True)
class Step:
    """A step: sequences, each with new tokens after `depth` others."""

    type: str
    cells: Cells

    @property
    def is_prompt(self) -> bool:
        return self.cells.n_queries > 1

    def __str__(self) -> str:
        cells = self.cells
        if self.is_prompt:
            return f"{self.type}, prompt of {cells.n_queries} at depth {cells.depth}"
        return f"{self.type}, {cells.n_seqs} x 1 token at depth {cells.depth}"


def fits(shape: ModelShape, n_seqs: int, depth: int) -> bool:
    """Whether there is memory for sequences of so many tokens, K and V in f16."""
    of_cell = shape.n_layer * shape.n_head_kv * shape.n_embd_head * 2 * 2
    return n_seqs * (depth + PROMPT) * of_cell <= MOST_CELL_BYTES


class Planner:
    """Plans of steps, as for an H100. A plan's launches are the same at every depth."""

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape

    def launches(self, type: str, n_seqs: int, depth: int) -> tuple[list[Prepared], list[Prepared]]:
        """Of a prompt of one sequence, and of a step in which each sequence decodes a token, with
        cells for `depth` other tokens of each."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_model(path, "Llama-3-8B", self._shape, type, pure=True, hollow=True)
            return self._of_model(path, n_seqs, depth)

    def _of_model(
        self, path: Path, n_seqs: int, depth: int
    ) -> tuple[list[Prepared], list[Prepared]]:
        device = CudaBackend(PlannedDriver())
        context = Context(
            load_model(GGUFFile.open(path)),
            [device, NullBackend()],
            n_ctx=(PROMPT + depth) * n_seqs,
            n_seq_max=n_seqs,
            n_ubatch=PROMPT,
            override_tensors={"token_embd": device.name},
        )
        context.load_weights()
        context.run_batch(_batch(1, 0, PROMPT))
        prompt = _launches(context)
        context.clear()
        for position in range(2):
            context.run_batch(_batch(n_seqs, position, 1))
        return prompt, _launches(context)


def _batch(n_seqs: int, position: int, n: int) -> Batch:
    batch = Batch()
    for seq in range(n_seqs):
        batch.extend(seq, [1] * n, position)
    return batch


def _launches(context: Context) -> list[Prepared]:
    """Of the plan that ran last. Raises BackendError if something does not run on the device."""
    plan = context._last
    assert plan is not None
    elsewhere = context.ops_by_backend().get("null")
    if elsewhere:
        raise BackendError(f"these ops have no CUDA kernel yet: {', '.join(elsewhere)}")
    return [p for split in plan.executable._plans for p in getattr(split, "launches", ())]
