"""When AMX is used: CPU, system and a check in another process must agree; otherwise avx512 is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ggmlpy.backends.cpu import amx_check, amx_products, host_cpu, isa
from ggmlpy.backends.cpu.cache import Cache
from ggmlpy.backends.cpu.simd import amx
from ggmlpy.backends.cpu.simd.core import Emitter
from ggmlpy.errors import BackendError
from tests.cpu.conftest import ISAS

_LEVELS = {level.name: level for level in isa.known()}
pytestmark = pytest.mark.skipif("amx" not in _LEVELS, reason="AMX is for x86-64")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="AMX is asked for on Linux only")


def emulated(name: str) -> isa.ISA:
    return replace(_LEVELS[name], has=_LEVELS[name].has | {"amx-emulated"})


@pytest.mark.parametrize("name", ISAS)
def test_the_products_that_it_checks_are_right(name: str) -> None:
    amx_products.check(emulated(name))


def test_a_wrong_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of a CPU that would take x for unsigned."""
    monkeypatch.setattr(amx, "dot4_s8s8", lambda b, acc, x, y: amx_dot_unsigned(b, acc, x, y))
    level = replace(emulated(ISAS[-1]), name="wrong")  # what is compiled for it is not kept
    with pytest.raises(ArithmeticError, match="rows of 16 bytes"):
        amx_products.check(level)


def test_a_wrong_product_of_bf16_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of a CPU that would take even elements for odd ones of the other factor."""
    pair, n_calls = amx._pair_of_bf16, 0

    def swapped(b: Emitter, pairs: object) -> tuple[object, object]:
        nonlocal n_calls
        n_calls += 1
        even, odd = pair(b, pairs)
        return (even, odd) if n_calls % 2 else (odd, even)

    monkeypatch.setattr(amx, "_pair_of_bf16", swapped)
    level = replace(emulated(ISAS[-1]), name="wrong too")
    with pytest.raises(ArithmeticError, match="tiles of bf16"):
        amx_products.check(level)


def amx_dot_unsigned(b: object, acc: object, x: object, y: object) -> object:
    from ggmlpy.backends.cpu.simd.dot import dot4_u8s8

    return dot4_u8s8(b, acc, x, y)


@on_linux
@pytest.mark.skipif("amx" in ISAS, reason="this machine has AMX")
def test_a_process_that_cannot_have_tiles_says_so() -> None:
    """For real: refused by the system, or by the CPU, which kills the process."""
    command = [sys.executable, "-m", "ggmlpy.backends.cpu.amx_products"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "does not allow it" in done.stderr
    code = (
        "from ggmlpy.backends.cpu import amx_products, isa\n"
        "amx_products.check(next(level for level in isa.known() if level.name == 'amx'))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode < 0


Ran = Callable[..., "subprocess.CompletedProcess[str]"]


def ended(returncode: int, stderr: str = "") -> Ran:
    """A `subprocess.run` whose process ends this way."""
    stdout = "" if returncode else f"{amx_check.RIGHT}\n"
    return lambda *args, **kwargs: subprocess.CompletedProcess([], returncode, stdout, stderr)


def ended_unseen(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """A process whose end the system does not tell, as where SIGCHLD is ignored."""
    return subprocess.CompletedProcess([], 0, "", "")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (ended(0), ""),
        (ended(-4), "a process that tried it died of SIGILL"),
        (ended(3, "a product of tiles is wrong"), "the check of it failed: a product of tiles"),
    ],
)
def test_a_verdict_is_kept(
    run: Ran, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", run)
    first = amx_check._failure(Cache(tmp_path))
    assert first.startswith(reason)
    assert bool(first) == bool(reason)
    monkeypatch.setattr(subprocess, "run", ended(99))
    assert amx_check._failure(Cache(tmp_path)) == first
    monkeypatch.setattr(host_cpu, "name", lambda: "another CPU")
    assert "exit status 99" in amx_check._failure(Cache(tmp_path))


@pytest.mark.parametrize(
    "run",
    [
        ended_unseen,
        ended(-9),
        ended(-2),
        ended(-15),
        ended(1, "ModuleNotFoundError: No module named 'ggmlpy'"),
    ],
)
def test_an_end_that_says_nothing_of_tiles_is_not_kept(
    run: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory, an interrupt, a process that could not begin: the next one tries again."""
    monkeypatch.setattr(subprocess, "run", run)
    assert amx_check._failure(Cache(tmp_path))
    monkeypatch.setattr(subprocess, "run", ended(0))
    assert amx_check._failure(Cache(tmp_path)) == ""


def test_a_wrong_product_has_an_exit_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(level: isa.ISA) -> None:
        raise ArithmeticError("a product is wrong")

    monkeypatch.setattr(amx_products, "refused", lambda: "")
    monkeypatch.setattr(amx_products, "check", wrong)
    with pytest.raises(SystemExit) as ending:
        amx_products.main()
    status, said = ending.value.code, capsys.readouterr().err
    assert isinstance(status, int)
    monkeypatch.setattr(subprocess, "run", ended(status, said))
    assert amx_check._run_check() == ("the check of it failed: a product is wrong", True)


def test_the_process_that_checks_has_the_source_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in a session whose source is the folder that it is in, which its path calls ""."""
    given: list[list[str]] = []

    def run(command: list[str], *, env: dict[str, str], **options: object) -> object:
        given.append(env["PYTHONPATH"].split(os.pathsep))
        return ended(0)()

    monkeypatch.setattr(sys, "path", ["", *filter(None, sys.path)])
    monkeypatch.setattr(subprocess, "run", run)
    assert amx_check._run_check() == ("", True)
    (path,) = given
    assert path[0] == os.curdir


def test_a_check_that_did_not_end_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("check", 60)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "did not come to an end" in amx_check._failure(Cache(tmp_path))
    monkeypatch.setattr(subprocess, "run", ended(0))
    assert amx_check._failure(Cache(tmp_path)) == ""


@pytest.fixture
def amx_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose CPU reports all there is, and whose system allows it."""
    features = _LEVELS["amx"].needs | _LEVELS["avxvnni"].needs
    monkeypatch.setattr(host_cpu, "features", lambda: features)
    monkeypatch.setattr(amx_check, "usable", amx_check.usable.__wrapped__)
    monkeypatch.setattr(amx_check, "refused", lambda: "")
    monkeypatch.setattr(amx_check, "Cache", lambda: Cache(tmp_path))
    monkeypatch.setattr(isa, "available", isa.available.__wrapped__)
    monkeypatch.setattr(isa, "_FORCED", None)


@on_linux
def test_it_is_the_best_level_where_it_works(
    amx_host: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(amx_check, "_failure", lambda verdicts: "")
    assert isa.select().name == "amx"
    assert isa.select("amx").includes("avx512")
    assert capsys.readouterr().err == ""


@on_linux
@pytest.mark.parametrize("which", ["refused", "_failure"])
def test_where_it_does_not_avx512_is_used_and_a_line_says_why(
    which: str, amx_host: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(amx_check, "_failure", lambda verdicts: "")
    monkeypatch.setattr(amx_check, which, lambda *args: "it is broken")
    assert isa.select().name == "avx512"
    said = capsys.readouterr().err
    assert said == "ggmlpy: AMX is not used, but AVX512: it is broken\n"
    with pytest.raises(BackendError, match=r"'amx' cannot be used: .* has avx512, "):
        isa.select("amx")
    assert capsys.readouterr().err == ""  # said once on a machine, not by every process


def test_a_level_that_is_asked_for_by_name_needs_no_check(
    amx_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> bool:
        raise AssertionError("AMX was asked for")

    monkeypatch.setattr(amx_check, "usable", never)
    assert isa.select("avx512").name == "avx512"


@pytest.mark.skipif("amx" in ISAS, reason="this machine has AMX")
def test_a_machine_without_it_is_not_asked() -> None:
    """Starting costs nothing there: the module of the check is not even imported."""
    code = (
        "import sys, ggmlpy.backends.cpu.isa as isa; isa.select();"
        "sys.exit('ggmlpy.backends.cpu.amx_check' in sys.modules)"
    )
    if not _LEVELS["amx"].needs <= host_cpu.features():
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0
