"""A device to be measured: its memory filled, its work timed, its ceilings found.

Everything takes any Backend, so that the benchmark can be tried without a GPU. Time is that of the
host: a number of runs is queued, and the host waits once, so that what it does for a run is hidden
behind the runs before. What the device needs for a run alone is measured in that way.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_worker import NotHere
from benchmarks.models import random_rows
from ggmlpy import ops
from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.graph.buffer import Bytes, Place
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import TensorType, type_of
from ggmlpy.sched.executable import Executable

TILE_BYTES = 4 << 20  # of random bytes, which fill larger memory again and again
N_TIMES = 5  # of which the median is taken


@dataclass(frozen=True, slots=True)
class Effort:
    """How long things are timed.

    least_s     of one timing, of which there are N_TIMES
    copy_bytes  of the copies that measure bandwidth
    gemm_n      rows and columns of the product that measures arithmetic
    """

    least_s: float = 0.05
    copy_bytes: int = 2 << 30
    gemm_n: int = 8192


class Device:
    """A backend, and what is measured with it."""

    def __init__(self, name: str, effort: Effort) -> None:
        """Raises BackendError if there is no such device."""
        self.name = name
        self.backend: Backend = get_backend(name)
        self.effort = effort
        self._tiles: dict[tuple[str, int], Bytes] = {}

    @property
    def is_gpu(self) -> bool:
        """Whether CuPy can be used on the same device."""
        return self.name.startswith("cuda") and not self.is_emulated

    @property
    def is_emulated(self) -> bool:
        return self.name == "cuda-emulated"

    @property
    def cuda(self) -> CudaBackend:
        """The backend, where it is one of CUDA. Raises NotHere."""
        self.require_cuda()
        assert isinstance(self.backend, CudaBackend)
        return self.backend

    def require_cuda(self) -> None:
        """Raise NotHere for a part that only CUDA has."""
        if not isinstance(self.backend, CudaBackend):
            raise NotHere(f"only for CUDA, this is {self.backend.name}")

    def about(self) -> dict[str, Any]:
        """What the device is, and with which versions it is measured."""
        found: dict[str, Any] = {
            "device": self.backend.name,
            "backend": self.backend.name,
            "settings": self.backend.settings(),
            "versions": versions(),
        }
        if isinstance(self.backend, CudaBackend):
            info = self.backend.driver.info
            found["device"] = info.name
            found["capability"] = list(info.capability)
            found["n_sm"] = info.n_sm
            found["total_bytes"] = info.total_bytes
            cubins = getattr(self.backend.driver, "_cubins", None)
            if cubins is not None:  # the compiler that this driver's version of CUDA allows
                found["versions"]["NVRTC"] = cubins.compiler.version_text
        if self.is_gpu:
            found["nvidia_smi"] = nvidia_smi()
        return found

    def free_bytes(self) -> int | None:
        """Bytes of its memory that can be allocated; None if it does not tell."""
        return self.backend.buffer_type.free_bytes()

    def release(self) -> None:
        """Free the memory of what is not referenced any more. The backend keeps the plan that ran
        last, with all that it reads, for messages: it gets a small one instead."""
        x = self.index_leaf(np.zeros(1, np.int32))
        executable = Executable(Graph(ops.cast(x, type_of("f32"))), [self.backend])
        executable.run()
        del executable
        gc.collect()

    def is_healthy(self) -> bool:
        """Whether it still copies bytes: after an error of a kernel CUDA does nothing any more."""
        try:
            sent = np.arange(256, dtype=np.uint8)
            buffer = self.backend.buffer_type.allocate(sent.nbytes)
            buffer.write(0, sent)
            self.backend.synchronize()
            return bool((np.asarray(buffer.read(0, sent.nbytes)) == sent).all())
        except Exception:
            return False

    # --- memory ---

    def fill(self, place: Place, type: TensorType, n_bytes: int, n: int, size: float = 1.0) -> None:
        """Random values whose root mean square is about `size`, in rows of `n`: one tile of them,
        which the device copies behind itself until all bytes are there."""
        tile = self._tile(type, n, size)
        buffer, n_done = place.buffer, min(len(tile), n_bytes)
        buffer.write(place.offset, tile[:n_done])
        while n_done < n_bytes:
            n_more = min(n_done, n_bytes - n_done)
            buffer.copy_from(place.offset + n_done, buffer, place.offset, n_more)
            n_done += n_more

    def _tile(self, type: TensorType, n: int, size: float) -> Bytes:
        key = f"{type} {size}", n
        if key not in self._tiles:
            rng = np.random.Generator(np.random.SFC64(n))
            n_rows = max(1, TILE_BYTES // type.row_bytes(n))
            rows = random_rows(rng, type, n_rows, n, size)
            self._tiles[key] = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        return self._tiles[key]

    def leaf(
        self, type: str, ne: Sequence[int], size: float = 1.0, flags: Flag = Flag.NONE
    ) -> Tensor:
        """A leaf in the device's memory, of random values."""
        spec = Spec(tuple(ne), type_of(type))
        made = Tensor(spec, flags=flags, place=self._allocate(spec.n_bytes))
        assert made.place is not None
        self.fill(made.place, spec.type, spec.n_bytes, spec.ne[0], size)
        return made

    def index_leaf(self, values: NDArray[np.int32]) -> Tensor:
        """A leaf in the device's memory, of whole numbers in numpy's order."""
        spec = Spec(values.shape[::-1], type_of("i32"))
        made = Tensor(spec, place=self._allocate(spec.n_bytes))
        assert made.place is not None
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        made.place.buffer.write(0, raw)
        return made

    def _allocate(self, n_bytes: int) -> Place:
        return Place(self.backend.buffer_type.allocate(n_bytes))

    # --- time ---

    def seconds(self, submit: Callable[[], object]) -> float:
        """What the device needs for some work: the median of several timings of many runs.

        It runs three times before, so that everything is compiled and captured.
        """
        for _ in range(3):
            submit()
        return repeated(submit, self.backend.synchronize, self.effort.least_s)

    # --- ceilings ---

    def copy_bandwidth(self) -> float:
        """Bytes a second that are read and written by copies within the device's memory."""
        n_bytes = self._half_of_free(self.effort.copy_bytes)
        source, target = (self.backend.buffer_type.allocate(n_bytes) for _ in range(2))
        self.fill(Place(source), type_of("f16"), n_bytes, 1024)
        return 2 * n_bytes / self.seconds(lambda: target.copy_from(0, source, 0, n_bytes))

    def upload_bandwidth(self) -> float:
        """Bytes a second from memory of the host that is locked in place."""
        n_bytes = self._half_of_free(min(self.effort.copy_bytes, 256 << 20))
        source = self.backend.host_buffer_type.allocate(n_bytes)
        target = self.backend.buffer_type.allocate(n_bytes)
        to, at = Place(target), Place(source)
        return n_bytes / self.seconds(lambda: self.backend.copy(to, at, n_bytes))

    def _half_of_free(self, n_bytes: int) -> int:
        free = self.free_bytes()
        return n_bytes if free is None else min(n_bytes, free // 3 >> 20 << 20)


def repeated(
    submit: Callable[[], object], wait: Callable[[], None], least_s: float, n_times: int = N_TIMES
) -> float:
    """Seconds of one run: the median of `n_times` timings, each of so many runs that it takes
    `least_s` at least."""
    wait()
    n_runs, spent_s = 1, _timed(submit, wait, 1)
    while spent_s < least_s:
        n_runs = min(4 * n_runs, max(2 * n_runs, int(1.2 * n_runs * least_s / max(spent_s, 1e-9))))
        spent_s = _timed(submit, wait, n_runs)
    return median([spent_s, *(_timed(submit, wait, n_runs) for _ in range(n_times - 1))]) / n_runs


def _timed(submit: Callable[[], object], wait: Callable[[], None], n_runs: int) -> float:
    began = perf_counter()
    for _ in range(n_runs):
        submit()
    wait()
    return perf_counter() - began


def versions() -> dict[str, str]:
    """Of everything that the figures depend on; "-" for what is not here."""
    found = {name: _version(name) for name in ("ggmlpy", "numpy", "torch")}
    found["python"] = sys.version.split()[0]
    try:
        from ggmlpy.backends.cuda.nvrtc import nvrtc

        found["NVRTC"] = nvrtc().version_text
    except Exception as error:
        found["NVRTC"] = f"- ({type(error).__name__})"
    try:
        import cupy

        runtime = cupy.cuda.runtime
        found["CuPy"] = cupy.__version__
        found["CUDA of the driver"] = _cuda_version(runtime.driverGetVersion())
        found["CUDA of CuPy"] = _cuda_version(runtime.runtimeGetVersion())
    except Exception as error:
        found["CuPy"] = f"- ({type(error).__name__})"
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _cuda_version(number: int) -> str:
    """13.0 of 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"


def nvidia_smi() -> str:
    """Driver, clocks and power of the GPU; "-" without the program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "-"
    asked = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current"
    try:
        done = subprocess.run(
            [program, f"--query-gpu={asked}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "-"
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else "-"
