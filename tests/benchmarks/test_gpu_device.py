"""What the GPU benchmark asks of CuPy and PyTorch, on a host that has neither."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import gpu_measure as measure
from benchmarks.gpu_device import Device
from benchmarks.gpu_libraries import Torch
from benchmarks.gpu_measure import QUICK
from benchmarks.gpu_worker import Notes
from ggmlpy.backends.cuda.nvrtc import nvrtc
from ggmlpy.errors import BackendError
from tests.cuda.fake_cupy import FakeCupy

pytestmark = pytest.mark.quick


class HostArray:
    """An array of CuPy."""

    def __init__(self, shape: tuple[int, int], dtype: Any) -> None:
        self.values = np.zeros(shape, dtype)

    def set(self, values: NDArray[Any]) -> None:
        assert values.flags.c_contiguous
        self.values[:] = values

    @property
    def T(self) -> HostArray:
        made = HostArray((1, 1), self.values.dtype)
        made.values = self.values.T
        return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy whose products are those of the host; there is no PyTorch."""
    try:
        nvrtc()
    except BackendError as error:
        pytest.skip(str(error))
    found: Any = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", found)
    monkeypatch.setitem(sys.modules, "torch", None)

    def matmul(x: HostArray, w: HostArray, out: HostArray) -> None:
        np.matmul(x.values, w.values, out=out.values)

    found.__version__ = "14.2"
    found.empty, found.matmul = HostArray, matmul
    found.cuda.runtime.runtimeGetVersion = lambda: 13020
    found.cuda.Device = lambda index: SimpleNamespace(use=lambda: None)
    found.cuda.get_current_stream = lambda: SimpleNamespace(synchronize=lambda: None)
    found.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    return found


def test_a_gpu_tells_what_it_is_and_its_ceilings(fake: Any) -> None:
    device = Device("cuda", QUICK.effort)
    about = device.about()
    assert about["device"].startswith("NVIDIA")
    assert about["versions"]["CuPy"] == "14.2"
    assert about["versions"]["CUDA of CuPy"] == "13.2"
    assert about["versions"]["NVRTC"][0].isdigit()
    assert device.is_healthy()
    notes = Notes({}, 60.0)
    measure.ceilings(device, QUICK, notes)
    assert notes.values["copy_gbs"] > 0
    assert notes.values["upload_gbs"] > 0
    assert notes.values["f16_tflops"] == notes.values["products"]["cuBLAS (CuPy)"]
    assert list(notes.values["missing"]) == ["PyTorch"]
    fake.failures["memcpyAsync"] = 700  # an illegal address, of which CUDA does not recover
    assert not device.is_healthy()


def test_without_cublas_the_peak_is_unknown(fake: Any) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("libcublas.so.13: cannot open shared object file")

    fake.matmul = missing
    notes = Notes({}, 60.0)
    measure.ceilings(Device("cuda", QUICK.effort), QUICK, notes)
    assert notes.values["f16_tflops"] is None
    assert "libcublas.so.13" in notes.values["missing"]["cuBLAS (CuPy)"]


def test_pytorch_is_asked_for_products_and_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def sdpa(q: Any, k: Any, v: Any, **options: Any) -> None:
        asked.append((q.shape, k.shape, options))

    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: True,
            set_device=asked.append,
            synchronize=lambda: None,
            empty_cache=lambda: None,
        ),
        float16="f16",
        randn=lambda shape, dtype, device: np.ones(shape, np.float16),
        matmul=np.matmul,
        nn=SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=sdpa)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    library = Torch(QUICK.effort, 1)
    assert asked == [1]
    assert library.seconds(library.product(8, 16, 4, 2)) > 0
    library.attention(64, 32, 8, n_query=5, n_kv=5, n_seqs=2)[0]()
    options = {"is_causal": True, "enable_gqa": True}
    assert asked[1:] == [((2, 32, 5, 64), (2, 8, 5, 64), options)]
    library.release()
