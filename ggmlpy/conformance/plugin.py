"""The conformance suite as a pytest plug-in: `pytest --ggmlpy-backend=NAME`.

    pytest --ggmlpy-backend=mine                        the suite alone
    pytest --ggmlpy-backend=mine tests                  your tests, then the suite
    pytest --ggmlpy-backend=mine --ggmlpy-op='mul_mat*' --ggmlpy-skips=0

Without that option the plug-in does nothing. Installed with ggmlpy; pytest itself is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the suite imports every op: only for those who ask for it
    from ggmlpy.conformance.suite import ConformanceTest, Subject

_SUITE = str(Path(__file__).with_name("backend_suite.py"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ggmlpy", "conformance of a ggmlpy backend")
    group.addoption("--ggmlpy-backend", metavar="NAME", help="run the suite on this backend")
    group.addoption("--ggmlpy-op", metavar="GLOB", action="append", help="only these ops")
    group.addoption("--ggmlpy-seed", metavar="N", type=int, default=0, help="of the inputs (0)")
    group.addoption("--ggmlpy-skips", metavar="N", type=int, help="fail unless so many are skipped")


def pytest_configure(config: pytest.Config) -> None:
    backend = config.getoption("--ggmlpy-backend")
    if not backend:
        return
    from ggmlpy.backends import backend_names

    if backend not in backend_names():
        known = ", ".join(backend_names())
        raise pytest.UsageError(f"--ggmlpy-backend: no backend {backend!r}; there are {known}")
    if _SUITE not in config.args:
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.args[:] = [*config.args, _SUITE] if named else [_SUITE]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ggmlpy_test" in metafunc.fixturenames:
        tests = chosen_tests(metafunc.config)
        metafunc.parametrize("ggmlpy_test", tests, ids=[test.id for test in tests])


def chosen_tests(config: pytest.Config) -> list[ConformanceTest]:
    """The tests of the ops that were asked for."""
    from ggmlpy.conformance.table import all_tests

    globs = config.getoption("--ggmlpy-op") or ["*"]
    tests: list[ConformanceTest] = all_tests()
    return [test for test in tests if any(fnmatchcase(test.op, glob) for glob in globs)]


@pytest.fixture(scope="session")
def ggmlpy_subject(request: pytest.FixtureRequest) -> Subject:
    """The backend, with what the collected tests need compiled."""
    from ggmlpy.backends import get_backend
    from ggmlpy.conformance.suite import Subject, prepare

    name = request.config.getoption("--ggmlpy-backend")
    assert isinstance(name, str), "the tests are collected for --ggmlpy-backend only"
    seed = request.config.getoption("--ggmlpy-seed")
    subject = Subject(get_backend(name, 1), [get_backend(name, 2)], seed)
    prepare(subject, list(_collected(request.session)))
    return subject


def _collected(session: pytest.Session) -> Iterator[ConformanceTest]:
    """The tests of the suite that this process was given."""
    for item in session.items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            test: ConformanceTest | None = item.callspec.params.get("ggmlpy_test")  # type: ignore[assignment]
            if test is not None:
                yield test


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    expected, found = _skips(terminalreporter)
    if expected is not None and found != expected:
        terminalreporter.write_line(
            f"ggmlpy: {found} tests of the suite were skipped, --ggmlpy-skips says {expected}",
            red=True,
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, pytest.TerminalReporter):
        expected, found = _skips(reporter)
        if expected is not None and found != expected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips(reporter: pytest.TerminalReporter) -> tuple[int | None, int]:
    """How many tests of the suite should be skipped, None if it does not matter, and how many
    were."""
    skipped = reporter.stats.get("skipped", [])
    n = sum("::test_backend[" in report.nodeid for report in skipped)  # of backend_suite.py
    expected = reporter.config.getoption("--ggmlpy-skips")
    return expected if isinstance(expected, int) else None, n
