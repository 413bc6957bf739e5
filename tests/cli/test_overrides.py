"""Options in place of a file's metadata."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run


def text(run: Run, *args: object) -> str:
    done = run("generate", "-n", 12, "--temp", 0, "-q", *args)
    assert done.code == 0, done
    return done.out


def test_rotary_embeddings(run: Run) -> None:
    base = text(run, "--rope-freq-base", 500)
    assert base == text(run, "--override-kv", "llama.rope.freq_base=float:500")
    assert base != text(run)
    scaled = text(run, "--rope-scaling", "linear", "--rope-scale", 4)
    assert scaled == text(run, "--rope-freq-scale", 0.25)
    assert scaled != text(run)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--override-kv", "a"), 'override-kv is "a": it must be KEY=TYPE:VALUE'),
        (("--override-kv", "general.name=int:3"), '"general.name" is 3: it must be a text'),
        (("--rope-scaling", "ntk"), 'rope_scaling is "ntk": it must be one of none, linear'),
        (("--rope-scale", 2, "--rope-freq-scale", 1), "give one of the two"),
        (("--rope-scale", 0), "rope-scale is 0.0: it must be above 0"),
    ],
)
def test_what_they_cannot_be(run: Run, args: tuple[object, ...], message: str) -> None:
    done = run("generate", *args)
    assert done.code == 1
    assert message in done.err
    assert len(done.err.splitlines()) == 1
