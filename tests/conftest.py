"""Options of pytest: `--placement`, and a process per core for the whole suite."""

from __future__ import annotations

import os

import pytest

from tests import placement


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--placement", metavar="mock[:N]", help="layers on the device for tests")


def pytest_configure(config: pytest.Config) -> None:
    where = config.getoption("--placement")
    if where:
        placement.install(where)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process per core for the whole suite, and none besides this one for named tests."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return len(os.sched_getaffinity(0)) if is_whole and hasattr(os, "sched_getaffinity") else 0
