from __future__ import annotations

import subprocess
import sys

import pytest

from ggmlpy.backends.cpu import amx_check, host_cpu, isa
from ggmlpy.errors import BackendError


def test_generic_is_always_the_last_resort() -> None:
    assert isa.available()[-1].name == "generic"
    assert isa.select("generic").name == "generic"
    assert isa.select() == isa.available()[0]


def test_levels_include_those_below() -> None:
    best = isa.available()[0]
    for level in isa.available():
        assert best.includes(level.name)
        assert level.includes("generic")
    assert isa.select("generic").includes(best.name) == (best.name == "generic")


def test_a_level_needs_all_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    known = isa.known()
    if len(known) == 1:
        pytest.skip("this architecture has one level")
    everything = set[str]().union(*(level.needs for level in known))
    features = set(everything)
    monkeypatch.setattr(host_cpu, "features", lambda: features)
    monkeypatch.setattr(amx_check, "usable", lambda: True)
    assert isa.available.__wrapped__() == known
    for missing in everything:
        features.remove(missing)
        left = tuple(level for level in known if missing not in level.needs)
        assert isa.available.__wrapped__() == left, missing
        features.add(missing)


def test_what_the_host_lacks_is_an_error_that_says_what_it_has() -> None:
    with pytest.raises(BackendError, match=r"'sse9' cannot be used: .* has .*generic"):
        isa.select("sse9")
    with pytest.raises(BackendError, match=r"unknown instruction set 'sse9'; known: .*generic"):
        isa.select("generic").includes("sse9")


def test_a_forced_level_that_the_host_lacks_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isa, "_FORCED", "sse9")
    with pytest.raises(BackendError, match=r"^GGMLPY_CPU_ISA: 'sse9' cannot be used: .* generic"):
        isa.select()


@pytest.mark.parametrize("name", ["generic", "Generic", "GENERIC"])
def test_the_environment_forces_a_level(name: str) -> None:
    code = "from ggmlpy.backends.cpu import isa; print(isa.select().name)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={"GGMLPY_CPU_ISA": name}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "generic"
