"""Fixtures of the tests of the driver: a CuPy that is not one, and the driver on it."""

from __future__ import annotations

import sys

import pytest

from ggmlpy.backends.cuda import cupy_driver, overlap
from ggmlpy.backends.cuda.cupy_driver import CupyDriver
from tests.cuda.fake_cupy import FakeCubins, FakeCupy


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(cupy_driver, "Cubins", FakeCubins)
    monkeypatch.setattr(overlap, "driver_library", lambda: None)  # this machine may have a GPU
    return fake


@pytest.fixture
def driver(cupy: FakeCupy) -> CupyDriver:
    return CupyDriver()
