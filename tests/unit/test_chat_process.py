"""The process that chat templates run in: what goes there and back, how it starts and ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggmlpy
from ggmlpy.errors import TemplateError
from ggmlpy.text.template_process import Limits, TemplateProcess
from tests.processes import interruptible
from tests.unit.conversations import PROCESS, render

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

# Starts in a tenth of the time that all of the package takes.
BEGIN = f"""
import os, sys, types
package = sys.modules["ggmlpy"] = types.ModuleType("ggmlpy")
package.__path__ = {list(ggmlpy.__path__)!r}
from ggmlpy.text.template_process import Limits, TemplateProcess
process = TemplateProcess(Limits(cpu_s=1e6, wall_s=1e6))
assert process.run("{{{{ a }}}}", {{"a": 1}}) == "1"
"""


def started(code: str) -> subprocess.Popen[str]:
    with interruptible():
        return subprocess.Popen(
            [sys.executable, "-c", BEGIN + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@settings(deadline=None)  # the first example starts the process
@given(content=st.text(st.characters()), key=st.text(st.characters()))
def test_any_text_arrives_and_returns(content: str, key: str) -> None:
    value = {key: content, "\ud83d\ude00": "\ud83d\ude00\x00\u2028"}
    source = "{% for k, v in x | items %}{{ k ~ '\x1f' ~ v ~ '\x1e' }}{% endfor %}"
    expected = "".join(f"{k}\x1f{v}\x1e" for k, v in value.items())
    assert PROCESS.run(source, {"x": value}) == expected


def test_variables_arrive_as_json() -> None:
    x = {"b": (1, 2.5), 3: None, "a": MappingProxyType({"t": True}), "n": float("inf")}
    assert render("{{ x }}", x=x) == ("{'b': [1, 2.5], '3': None, 'a': {'t': True}, 'n': inf}")
    assert render("{{ x.b is none }} {{ x.b is defined }} {{ x.c is defined }}", x={"b": None}) == (
        "True True False"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "set cannot be written as JSON"),
        ([{"a": b"b"}], "bytes cannot be written as JSON"),
        ({(1, 2): 3}, "keys must be str"),
        (int("9" * 4000) ** 2, "4300 digits"),
    ],
    ids=["set", "bytes", "tuple as a key", "long integer"],
)
def test_what_json_cannot_hold_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=f"^variable tools of the chat template: .*{message}"):
        render("", tools=value)


def test_what_holds_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TemplateError, match=r"^variable documents of .* Circular reference"):
        render("", documents=circle)


def test_one_process_serves_many_threads() -> None:
    def own(i: int) -> bool:
        return PROCESS.run("{{ 'a' * n }}", {"n": i}) == "a" * i

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(own, range(200)))


def test_a_process_that_was_killed_is_replaced() -> None:
    process = TemplateProcess(Limits())
    process.run("a")
    killed = process._worker
    assert killed is not None
    killed.kill()
    killed.wait()
    assert process.run("b", {}) == "b"
    assert process._worker is not killed


def test_a_process_that_is_killed_at_work_is_an_error() -> None:
    process = TemplateProcess(Limits(cpu_s=1e6, wall_s=1e6))
    with ThreadPoolExecutor(1) as pool:
        rendered = pool.submit(process.run, ENDLESS, {})
        while not rendered.done():
            worker = process._worker
            if worker is not None:
                worker.kill()
        with pytest.raises(TemplateError, match="its process ended with status"):
            rendered.result()
    assert process.run("b", {}) == "b"


def test_a_python_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TemplateError, match="its process cannot be started: "):
        TemplateProcess(Limits()).run("a")


def test_nothing_from_the_environment_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "jinja2", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert TemplateProcess(Limits()).run("b", {}) == "b"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot interrupt a wait for a pipe")
def test_ctrl_c_ends_both_processes() -> None:
    with started(f"""
import threading

def tell(worker):
    while not process._lock.locked():
        pass
    print(worker.pid, flush=True)

threading.Thread(target=tell, args=[process._worker]).start()
try:
    process.run({ENDLESS!r}, {{}})
except KeyboardInterrupt:
    print(process.run("ok", {{}}))
""") as child:
        assert child.stdout is not None
        worker = int(child.stdout.readline())
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does, to all of a group
        assert child.communicate() == ("ok\n", "")
        assert child.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no handle on others' processes")
def test_it_ends_when_its_parent_is_killed() -> None:
    with started("print(process._worker.pid, flush=True); sys.stdin.read()") as child:
        assert child.stdout is not None
        worker = os.pidfd_open(int(child.stdout.readline()))
        child.kill()
        assert select.select([worker], [], []) == ([worker], [], [])
        os.close(worker)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_a_worker_of_its_own() -> None:
    with started("""
parents = process._worker
child = os.fork()
assert process.run("{{ a }}", {"a": child}) == str(child)
if not child:
    assert process._worker is not parents
    sys.exit(7)  # which runs what is registered for the exit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert process._worker is parents and parents.poll() is None
assert process.run("{{ a }}", {"a": 2}) == "2"
""") as child:
        out, err = child.communicate()
        assert (child.returncode, out) == (0, ""), err


def test_it_leaves_no_warning_at_the_exit() -> None:
    with started("import warnings; warnings.simplefilter('error'); sys.exit(0)") as child:
        assert child.communicate() == ("", "")
