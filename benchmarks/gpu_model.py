"""A model of a real shape on a device, with random weights and with sequences of any length.

No weight is read from a file: the device fills its memory with copies of a few random blocks, and
the model's file has holes where they would be. So 15 GB are there in seconds. A sequence of 32,768
tokens is made in the same way: K and V are random, and the tables of cells say that they are there.

The token embedding lies on the device too, as a second copy of the output matrix, so that a step is
one piece of work for the device. In use it lies on the host by default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu_device import Device, repeated
from benchmarks.models import ModelShape, write_model
from ggmlpy.backends.base import Backend
from ggmlpy.bench.bench import kept_bytes, prompt_batches, random_tokens, weight_bytes
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import Place
from ggmlpy.memory.batch import Batch
from ggmlpy.models import Model, load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.executable import Executable

# Llama-3-8B. Its embedding and its output matrix are two matrices, here they are one and its copy:
# a step reads the same bytes.
LLAMA_8B = ModelShape("llama", 32, 4096, 32, 8, 128, 14_336, 128_256, 131_072, 5e5, 1e-5)
TINY = ModelShape("llama", 2, 256, 4, 2, 64, 512, 512, 4096, 1e4, 1e-5)

N_WARM = 3  # steps: the first builds the plan and takes the full path, the second captures a graph
MAX_STEPS = 64  # that are timed
STEPS_S = 1.0  # after which no more steps are timed
LEAST_STEPS = 4
ROOM = N_WARM + MAX_STEPS + 1  # cells of a sequence for the steps


@dataclass(slots=True)
class RandomModel:
    """A model whose weights lie on a device; several contexts may share them."""

    device: Device
    shape: ModelShape
    type: str
    model: Model
    file: GGUFFile

    def context(
        self, n_seqs: int = 1, depth: int = 0, *, layout: str = "split", n_ubatch: int = 512
    ) -> Context:
        """A context for `n_seqs` sequences of `depth` tokens and some steps more. Raises
        AllocationError."""
        room = depth + max(ROOM, n_ubatch if n_seqs == 1 else 0)
        room = -(-room // 256) * 256  # whole pages too
        made = Context(
            self.model,
            [self.device.backend],
            n_ctx=n_seqs * room,
            n_seq_max=n_seqs,
            n_ubatch=max(n_ubatch, n_seqs),
            kv_layout=layout,
            override_tensors={"token_embd": self.device.backend.name},
        )
        made.warm_up()
        return made

    @property
    def n_weights(self) -> int:
        """Elements of matrices that every token is multiplied by, without the output matrix."""
        infos = self.file.tensors.items()
        return sum(
            info.ne[0] * info.ne[1] for name, info in infos if info.n_dims > 1 and "blk." in name
        )

    def weight_bytes(self, context: Context) -> int:
        """That a step reads."""
        return weight_bytes(self.file, context)

    def step_bytes(self, context: Context, n_seqs: int, n_tokens: int) -> int:
        """What a step reads at least, of sequences that hold so many tokens each."""
        return self.weight_bytes(context) + n_seqs * kept_bytes(context.memory, n_tokens)

    def prompt_flops(self, n: int) -> float:
        """Operations of a prompt: products with weights, attention, one output."""
        shape = self.shape
        heads = shape.n_layer * shape.n_head * shape.n_embd_head
        attention = 4 * heads * n * (n + 1) / 2
        return 2.0 * n * self.n_weights + attention + 2.0 * shape.n_embd * shape.n_vocab


@contextmanager
def random_model(device: Device, shape: ModelShape, type: str) -> Iterator[RandomModel]:
    """A model with all matrices of a type, but the output matrix as files have it: q6_K where
    others are smaller."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, "random", shape, type, hollow=True)
        with GGUFFile.open(path) as file:
            made = RandomModel(device, shape, type, load_model(file), file)
            fill_weights(device, made.model)
            yield made


def fill_weights(device: Device, model: Model) -> None:
    """Give every weight memory on the device and random values: `load_weights` leaves it there."""
    memory = device.backend.buffer_type
    for name, leaf in model.weights.leaves.items():
        spec = leaf.spec
        leaf.place = Place(memory.allocate(memory.tensor_bytes(spec)))
        size = 1.0 if "norm" in name else float(spec.ne[0]) ** -0.5
        device.fill(leaf.place, spec.type, spec.n_bytes, spec.ne[0], size)


def fill_sequences(device: Device, context: Context, n_seqs: int, depth: int) -> None:
    """Let each of the sequences hold `depth` tokens, of random K and V."""
    context.clear()
    for cache in context.memory.caches:
        cells, store = cache.cells, cache.store
        for leaf in store.leaves:
            assert leaf.place is not None
            device.fill(leaf.place, leaf.type, leaf.spec.n_bytes, leaf.ne[0])
        positions = np.arange(depth, dtype=np.int32)
        for seq in range(n_seqs if depth else 0):
            cells.occupy(cells.claim(depth, seq), positions, (seq,))


# --- what is measured ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step by the clock of its caller, and of the device alone."""

    step_s: float
    device_s: float

    @property
    def host_s(self) -> float:
        """By which the step is longer: Python, and waiting for the device to tell its end."""
        return max(0.0, self.step_s - self.device_s)

    def as_values(self) -> dict[str, float]:
        return {
            "step_us": round(1e6 * self.step_s, 2),
            "device_us": round(1e6 * self.device_s, 2),
            "host_us": round(1e6 * self.host_s, 2),
        }


def decode_times(device: Device, context: Context, n_seqs: int, depth: int) -> StepTimes:
    """Of steps that decode a token of each sequence, from `depth` tokens on."""
    tokens = random_tokens(context, N_WARM + MAX_STEPS, n_seqs)
    seconds: list[float] = []
    for i, row in enumerate(tokens):
        batch = Batch()
        for seq, token in enumerate(row):
            batch.add(token, depth + i, (seq,), output=True)
        began = perf_counter()
        context.run_batch(batch)
        if i >= N_WARM:
            seconds.append(perf_counter() - began)
        if len(seconds) >= LEAST_STEPS and sum(seconds) > STEPS_S:
            break
    return StepTimes(median(seconds), device_seconds(device, context))


def check_logits(context: Context) -> None:
    """Raise RuntimeError if the last step has computed nonsense, whose speed means nothing."""
    row = next(reversed(context.plans.plans.values())).read_logits(0, 1)
    if not np.isfinite(row).all() or float(row.std()) == 0.0:
        raise RuntimeError(f"the logits are wrong: {row[0, :4]} …")


def prompt_times(device: Device, context: Context, n: int, n_repeat: int = 6) -> StepTimes:
    """Of a prompt of `n` tokens in an empty cache, in one ubatch."""
    (batch,) = prompt_batches(random_tokens(context, 1, n), n)
    seconds = []
    for _ in range(2 + n_repeat):
        context.clear()
        began = perf_counter()
        context.run_batch(batch)
        seconds.append(perf_counter() - began)
    return StepTimes(median(seconds[2:]), device_seconds(device, context))


def device_seconds(device: Device, context: Context) -> float:
    """What the device needs to run the last step again: the host's work is hidden behind it."""
    executable = executable_of(context)
    for _ in range(2):
        executable.submit()
    executable.synchronize()
    return repeated(executable.submit, executable.synchronize, device.effort.least_s)


def executable_of(context: Context) -> Executable:
    """What ran the last step."""
    return next(reversed(context.plans.plans.values())).executable


def cuda_plans(context: Context) -> list[Any]:
    """The plans of CUDA of the last step."""
    return [plan for plan in executable_of(context)._plans if hasattr(plan, "launches")]


def n_launches(context: Context) -> int:
    """Kernels of the last step."""
    return sum(len(plan.launches) for plan in cuda_plans(context))


def placed_on_host(model: RandomModel, host: Backend) -> Context:
    """A context in which the token embedding lies on the host, as it does by default."""
    memory = host.buffer_type
    leaf = model.model.weights.leaves["token_embd.weight"]
    spec = leaf.spec
    leaf.place = Place(memory.allocate(memory.tensor_bytes(spec)))
    model.device.fill(leaf.place, spec.type, spec.n_bytes, spec.ne[0], spec.ne[0] ** -0.5)
    made = Context(
        model.model, [model.device.backend, host], n_ctx=ROOM + 512, n_ubatch=512, n_seq_max=1
    )
    made.warm_up()
    return made
