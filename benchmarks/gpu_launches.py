"""What a step launches on a GPU, and what it costs the host, counted without a GPU.

    python benchmarks/gpu_launches.py [--model Llama-3.2-1B] [--type q4_0] [--streams 1,32] [--save]

The CUDA backend runs on a driver that does nothing: plans are made as for an H100, and every launch
is noted. Weights are holes in a file, so that a model of any size can be looked at. The time of a
step is that of the host alone: Python, numpy, and no call of CUDA.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from benchmarks.models import FILE_TYPES, SHAPES, write_model
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.driver import (
    Access,
    Allocation,
    Captured,
    DeviceInfo,
    Driver,
    DriverEvent,
    Function,
    Grid,
)
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import ContextWarning

H100 = DeviceInfo("NVIDIA H100 80GB HBM3", (9, 0), 132, 80 << 30, 227 << 10)
RESULTS = report.RESULTS / "gpu_launches.json"
N_STEPS = 200


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch that would have been."""

    form: Form
    grid: Grid
    threads: int
    shared_bytes: int
    accesses: tuple[Access, ...]


@dataclass(eq=False)
class PlannedDriver(Driver):
    """A device that is not there: memory has addresses, and nothing runs."""

    info: DeviceInfo = H100
    name: str = "cuda"
    noted: list[Noted] = field(default_factory=list)
    n_graphs: int = 0  # launched

    def __post_init__(self) -> None:
        self._addresses = itertools.count(1 << 44, 1 << 36)
        self._event = _Event()

    def free_bytes(self) -> int:
        return self.info.total_bytes

    def allocate(self, n_bytes: int) -> Allocation:
        return _Allocation(next(self._addresses), n_bytes)

    def allocate_pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        return np.zeros(n_bytes, np.uint8)

    def copy(self, target: int, source: int, n_bytes: int) -> None: ...

    def fill(self, target: int, value: int, n_bytes: int) -> None: ...

    def record(self) -> DriverEvent:
        return self._event

    def wait(self, event: DriverEvent) -> None: ...

    def synchronize(self) -> None: ...

    def functions(self, forms: Iterable[Form]) -> dict[Form, Function]:
        return {form: _Function(form) for form in forms}

    def launch(
        self,
        function: Function,
        grid: Grid,
        block: Grid,
        shared_bytes: int,
        args: NDArray[Any],
        run: NDArray[Any],
        accesses: Sequence[Access],
    ) -> None:
        assert isinstance(function, _Function)
        self.noted.append(Noted(function.form, grid, block[0], shared_bytes, tuple(accesses)))

    def capture(self, work: Callable[[], None]) -> Captured:
        work()
        return _Captured(self)


class _Event(DriverEvent):
    def synchronize(self) -> None: ...


class _Allocation(Allocation):
    def __init__(self, address: int, n_bytes: int) -> None:
        self.address, self.n_bytes = address, n_bytes


class _Function(Function):
    def __init__(self, form: Form) -> None:
        self.form, self.name = form, form.name


class _Captured(Captured):
    def __init__(self, driver: PlannedDriver) -> None:
        self._driver = driver

    def launch(self) -> None:
        self._driver.n_graphs += 1


def step_of(context: Context, n_streams: int, position: int) -> Batch:
    batch = Batch()
    for seq in range(n_streams):
        batch.extend(seq, [1], position)
    return batch


def measured(path: Path, n_streams: int) -> dict[str, Any]:
    """Launches of a decode step of so many sequences, and the host's time for it in us."""
    driver = PlannedDriver()
    device = CudaBackend(driver)
    context = Context(
        load_model(GGUFFile.open(path)),
        [device, ReferenceBackend()],
        n_ctx=4096 * n_streams,
        n_seq_max=n_streams,
        n_ubatch=max(512, n_streams),
        override_tensors={"token_embd": device.name},
    )
    context.load_weights()
    for position in range(2):
        context.run_batch(step_of(context, n_streams, position))
    driver.noted.clear()
    times = []
    for position in range(2, N_STEPS + 2):
        if position == 2:  # the second run of the steady plan captures its graph
            context.run_batch(step_of(context, n_streams, position))
            continue
        batch = step_of(context, n_streams, position)
        started = perf_counter_ns()
        context.run_batch(batch)
        times.append((perf_counter_ns() - started) / 1e3)
    launches = _last_graph(context, driver)
    return {
        "sequences": n_streams,
        "launches": len(launches),
        "host_us": round(statistics.median(times), 1),
        "by_kernel": dict(Counter(str(launch.form) for launch in launches).most_common()),
    }


def _last_graph(context: Context, driver: PlannedDriver) -> list[Noted]:
    """The launches of the plan that ran last."""
    plan = context._last
    assert plan is not None
    return [
        Noted(p.form, p.grid, p.threads, p.shared_bytes, p.accesses)
        for split in plan.executable._plans
        for p in getattr(split, "launches", ())
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", choices=SHAPES, default="Llama-3.2-1B", help="shape of the model"
    )
    parser.add_argument("--type", choices=FILE_TYPES, default="q4_0", help="of its weights")
    parser.add_argument(
        "--streams", type=report.numbers, default=[1, 32], help="numbers of sequences, by commas"
    )
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ContextWarning)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, options.model, SHAPES[options.model], options.type, hollow=True)
        rows = [measured(path, n) for n in options.streams]
    for row in rows:
        table = Table("kernel", "launches", title=_title(row))
        for name, n in row["by_kernel"].items():
            table.add_row(name, str(n))
        report.show(table)
    if options.save:
        entry = {
            "date": datetime.date.today().isoformat(),
            "commit": report.commit(),
            "cpu": report.cpu_name(),
            "command": report.command(sys.argv),
            "steps": rows,
        }
        report.save(RESULTS, f"{options.model} {options.type}", entry)


def _title(row: dict[str, Any]) -> str:
    n = row["sequences"]
    return (
        f"{n} sequence{'s' if n > 1 else ''}: {row['launches']} launches,"
        f" {row['host_us']} us of the host"
    )


if __name__ == "__main__":
    main()
