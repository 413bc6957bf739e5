"""Launches that may overlap, against a driver library that is not one: what it is called with.

Sizes and places are those that a C compiler gives the structs of CUDA 12.9's cuda.h. Only a GPU
shows that CUDA takes the call as meant.
"""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ggmlpy.backends.cuda import overlap
from ggmlpy.backends.cuda.args import RUN
from ggmlpy.backends.cuda.cupy_driver import OVERLAP, CupyDriver
from ggmlpy.backends.cuda.overlap import Attribute, Config, OverlappingLaunch
from ggmlpy.backends.cuda.source import FOLDER, Form
from ggmlpy.errors import BackendError
from tests.cuda.fake_cupy import FakeCupy

FORM = Form("norm.cu", "rms_norm")


class FakeLibrary:
    """CUDA's driver library: `calls` are what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status = 0

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> int:
        at = ctypes.cast(config, ctypes.POINTER(Config)).contents
        attribute = at.attributes[0]
        self.calls.append(
            (
                *(list(at.grid), list(at.block), at.shared_bytes, at.stream, at.n_attributes),
                *(attribute.id, attribute.value[0], function.value, parameters.value, extra),
            )
        )
        return self.status


@pytest.fixture
def library(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setattr(overlap, "driver_library", lambda: fake)
    return fake


def launch(driver: CupyDriver) -> None:
    function = driver.functions([FORM])[FORM]
    args, run = np.zeros((), "i8"), np.zeros((), RUN)
    driver.launch(function, (7, 2, 1), (256, 1, 1), 64, args, run, [])


def test_structs_lie_in_memory_as_cuda_has_them() -> None:
    assert (ctypes.sizeof(Config), ctypes.sizeof(Attribute)) == (56, 72)
    assert Attribute.value.offset == 8
    fields = Config.shared_bytes, Config.stream, Config.attributes, Config.n_attributes
    assert [field.offset for field in fields] == [24, 32, 40, 48]


def test_a_launch_allows_the_next_one_to_overlap(cupy: FakeCupy, library: FakeLibrary) -> None:
    driver = CupyDriver()
    launch(driver)
    ((*config, parameters, extra),) = library.calls
    assert config == [[7, 2, 1], [256, 1, 1], 64, driver._stream.ptr, 1, 6, 1, 0xF00]
    assert parameters and extra is None
    assert "launchKernel" not in cupy.names()


def test_a_launch_that_fails_names_the_kernel(cupy: FakeCupy, library: FakeLibrary) -> None:
    library.status = 1
    with pytest.raises(BackendError, match=r"cuda: launching rms_norm with grid .*cudaError1"):
        launch(CupyDriver())


def test_where_cuda_does_not_have_it_launches_do_not_overlap(
    cupy: FakeCupy, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OverlappingLaunch.of((9, 0), 12_030)
    assert OverlappingLaunch.of((8, 9), 13_000) is None
    assert OverlappingLaunch.of((9, 0), 12_020) is None
    monkeypatch.setenv(OVERLAP, "0")
    launch(CupyDriver())
    monkeypatch.delenv(OVERLAP)
    monkeypatch.setattr(overlap, "driver_library", SimpleNamespace)  # an old one
    launch(CupyDriver())
    assert not library.calls
    assert cupy.names().count("launchKernel") == 2


def test_every_kernel_waits_for_the_launches_before_it() -> None:
    """By its declaration, or where it is declared to do so itself."""
    for path in sorted(FOLDER.glob("*.cu")):
        text = path.read_text(encoding="utf-8")
        assert "__global__" not in text, path.name
        ahead = re.findall(r"KERNEL_AHEAD\((\w+)", text)
        assert ahead == (["multiply_one_column", "multiply_few_columns"] if ahead else [])
    for name in ("products_one.cuh", "products_few.cuh"):
        body = (FOLDER / name).read_text(encoding="utf-8")
        # Before all else without weights, before a block without work ends, after the first copies.
        assert body.count("after_launches_before();") == 3
