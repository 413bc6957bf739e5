"""Other libraries on the same device, to compare with: cuBLAS, PyTorch; numpy without a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_device import Device, Effort, repeated
from benchmarks.gpu_worker import NotHere


class Library(ABC):
    """A library to compare with. Work that it is given is timed by `seconds`."""

    name: str

    def __init__(self, effort: Effort) -> None:
        self._effort = effort

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work that was given to it."""

    def release(self) -> None:  # noqa: B027  (not all keep any)
        """Give memory back that is kept for later arrays."""

    @abstractmethod
    def product(self, n_out: int, n_in: int, n: int, n_weights: int) -> list[Callable[[], object]]:
        """Products of f16 [n, n_in] with the transposes of `n_weights` matrices [n_out, n_in]."""

    def seconds(self, works: Sequence[Callable[[], object]]) -> float:
        """The mean time of some works that run one after another."""

        def submit() -> None:
            for work in works:
                work()

        submit()
        return repeated(submit, self.synchronize, self._effort.least_s) / len(works)


class Cublas(Library):
    """cuBLAS through CuPy. Nothing of CuPy is compiled: arrays are made of bytes."""

    name = "cuBLAS (CuPy)"

    def __init__(self, effort: Effort, index: int) -> None:
        super().__init__(effort)
        import cupy

        self._cupy: Any = cupy
        cupy.cuda.Device(index).use()
        self.seconds(self.product(64, 64, 64, 1))  # raises here if there is no cuBLAS

    def synchronize(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def release(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()

    def product(self, n_out: int, n_in: int, n: int, n_weights: int) -> list[Callable[[], object]]:
        cupy = self._cupy
        x, y = self._random(n, n_in), cupy.empty((n, n_out), np.float16)
        weights = [self._random(n_out, n_in) for _ in range(n_weights)]

        def times(w: Any) -> Callable[[], object]:
            return lambda: cupy.matmul(x, w.T, out=y)

        return [times(w) for w in weights]

    def _random(self, n_rows: int, n: int) -> Any:
        made = self._cupy.empty((n_rows, n), np.float16)
        made.set(random_matrix(n_rows, n))
        return made


class Torch(Library):
    """PyTorch on the same GPU."""

    name = "PyTorch"

    def __init__(self, effort: Effort, index: int) -> None:
        super().__init__(effort)
        import torch

        if not torch.cuda.is_available():
            raise NotHere("PyTorch does not find the GPU")
        torch.cuda.set_device(index)
        self._torch: Any = torch

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def release(self) -> None:
        self._torch.cuda.empty_cache()

    def product(self, n_out: int, n_in: int, n: int, n_weights: int) -> list[Callable[[], object]]:
        torch = self._torch
        x = self._random(n, n_in)
        weights = [self._random(n_out, n_in) for _ in range(n_weights)]

        def times(w: Any) -> Callable[[], object]:
            return lambda: torch.matmul(x, w.T)

        return [times(w) for w in weights]

    def attention(
        self, head: int, n_head: int, n_head_kv: int, n_query: int, n_kv: int, n_seqs: int
    ) -> list[Callable[[], object]]:
        """scaled_dot_product_attention of f16, causal where there are several queries."""
        sdpa: Any = self._torch.nn.functional.scaled_dot_product_attention
        q = self._random(n_seqs, n_head, n_query, head)
        k, v = (self._random(n_seqs, n_head_kv, n_kv, head) for _ in range(2))
        is_causal = n_query > 1
        return [lambda: sdpa(q, k, v, is_causal=is_causal, enable_gqa=n_head != n_head_kv)]

    def _random(self, *shape: int) -> Any:
        return self._torch.randn(shape, dtype=self._torch.float16, device="cuda")


class Numpy(Library):
    """numpy's product of f32: for a run without a GPU."""

    name = "numpy (f32)"

    def synchronize(self) -> None:
        pass

    def product(self, n_out: int, n_in: int, n: int, n_weights: int) -> list[Callable[[], object]]:
        x = random_matrix(n, n_in).astype(np.float32)
        weights = [random_matrix(n_out, n_in).astype(np.float32) for _ in range(n_weights)]

        def times(w: NDArray[np.float32]) -> Callable[[], object]:
            return lambda: x @ w.T

        return [times(w) for w in weights]


def libraries(device: Device) -> tuple[list[Library], dict[str, str]]:
    """Those that are here, and why the others are not, by name."""
    if not device.is_gpu:
        return [Numpy(device.effort)], {}
    found: list[Library] = []
    index: int = getattr(device.cuda.driver, "device", 0)
    missing = {}
    for kind in (Cublas, Torch):
        try:
            found.append(kind(device.effort, index))
        except Exception as error:  # whatever a library that is not whole raises
            text = str(error).strip().splitlines() or [""]
            missing[kind.name] = f"{type(error).__name__}: {text[0]}"
    return found, missing


@lru_cache(maxsize=2)  # of hundreds of MB: the same is copied to many matrices
def random_matrix(n_rows: int, n: int) -> NDArray[np.float16]:
    """Values of the size of weights: a product of zeros takes less power, and is faster."""
    rng = np.random.Generator(np.random.SFC64(n_rows))
    some = rng.standard_normal(min(n_rows * n, 1 << 21), np.float32).astype(np.float16)
    return np.resize(some, (n_rows, n))
