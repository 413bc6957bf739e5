"""`pytest --placement mock:half tests/engine` runs models with layers on the device for tests.

mock              everything on the mock device, without any other backend
mock:N            the last N layers on it, "half" or "all" of them; the rest on the test's backends
cuda-emulated     the same on the emulated CUDA device
cuda-emulated:N
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ggmlpy.backends.base import Backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.models import Model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.placement import ALL


def _mock(seed: int, inner: Backend) -> Backend:
    return MockBackend(seed=seed, inner=inner)


def _cuda_emulated(seed: int, inner: Backend) -> Backend:
    from ggmlpy.backends.cuda.backend import CudaBackend
    from ggmlpy.backends.cuda.emulated import EmulatedDriver

    return CudaBackend(EmulatedDriver(seed=seed))


DEVICES = {"mock": _mock, "cuda-emulated": _cuda_emulated}


def install(placement: str) -> None:
    """Insert the device before the backends of every context."""
    name, _, n_layers = placement.partition(":")
    if name not in DEVICES or n_layers not in ("", "half", "all", *map(str, range(1000))):
        names = " or ".join(DEVICES)
        raise pytest.UsageError(f"--placement is {placement}: it must be {names}, or with :N")
    seeds = itertools.count()
    devices: WeakKeyDictionary[Model, Backend] = WeakKeyDictionary()  # that have its weights
    init = Context.__init__

    @functools.wraps(init)
    def on_device(self: Context, model: Model, backends: Sequence[Backend], **options: Any) -> None:
        device = devices.get(model)
        if device is None:
            device = devices[model] = DEVICES[name](next(seeds), backends[0])
            if model.encoder is not None:  # a model of the same weights
                devices[model.encoder] = device
        n_all = model.n_block + 1
        counts = {"": ALL, "all": ALL, "half": n_all // 2}
        options["n_gpu_layers"] = counts[n_layers] if n_layers in counts else int(n_layers)
        chain = [device, *backends] if n_layers else [device]
        init(self, model, chain, **options)

    Context.__init__ = on_device  # type: ignore[method-assign]
