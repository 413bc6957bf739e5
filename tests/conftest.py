"""Options of pytest: `--placement`, and a process per core for the whole suite."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings

from ggmlpy.backends.cpu.cores import default_n_threads
from tests import compilers, placement

ROOT = Path(__file__).parent
QUICK = ("core", "mock", "ops", "unit")  # folders whose tests compile little
N_SHARING = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
N_COMPILERS = max(1, default_n_threads() // N_SHARING)
NOT_QUICK = ("test_gguf_damaged.py", "test_interrupts.py", "test_reference_results.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--placement", metavar="mock[:N]", help="layers on the device for tests")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("ggmlpy", deadline=None)  # a busy machine is no failure
    settings.load_profile("ggmlpy")
    where = config.getoption("--placement")
    if where:
        placement.install(where)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process per core for the whole suite, and none besides this one for named tests."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return len(os.sched_getaffinity(0)) if is_whole and hasattr(os, "sched_getaffinity") else 0


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick` files without such tests need not be imported."""
    if config.option.markexpr == "quick" and collection_path.suffix == ".py":
        return not _is_quick(collection_path) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    for item in items:
        if config.getoption("--placement") and item.get_closest_marker("placed"):
            item.add_marker(pytest.mark.skip(reason="it says itself where things lie"))
        if _is_quick(item.path):
            item.add_marker(pytest.mark.quick)


def pytest_collection_finish() -> None:
    """Tests stay to the end: the garbage collector need not look at 11,000 of them each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    compilers.keep(item.path.name, N_COMPILERS)


def pytest_sessionfinish() -> None:
    compilers.end_all()


def _is_quick(path: Path) -> bool:
    return path.parent.name in QUICK and path.parent.parent == ROOT and path.name not in NOT_QUICK
