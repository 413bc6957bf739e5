"""The comparison with llama.cpp: verdicts, and engines that refuse, die or hang; without it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import llama_archs, our_logits
from benchmarks.arch_page import Row, page, read_page, summary, with_rows
from benchmarks.llama_archs import Comparison, judge
from benchmarks.peer_logits import N_DECODE, N_PROMPT, Peer, PeerError, Recording
from tests.documents import ROOT, text_of
from tests.models.seeded_specs import SPECS
from tests.models.seeded_specs.keys import spec
from tests.models.tiny import Tiny, write_model
from tests.tools import record_logits, record_seeded

N = N_PROMPT + N_DECODE


def recording(n_vocab: int = 5, *, has_memory: bool = True) -> Recording:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, n_vocab, N)
    logits = rng.standard_normal((N, n_vocab)).astype(np.float32)
    return Recording(tokens, logits, "logits", has_memory)


def peer_of(folder: Path, script: str, timeout_s: float = 30) -> Peer:
    """A peer whose interpreter is a shell script; it has the path of the recording in $4."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Peer(folder, program, folder, timeout_s)


def comparison_with(folder: Path, model: Path, recorded: Recording) -> Comparison:
    """With logits that are kept already, so that the peer is not asked."""
    recorded.save(model.with_suffix(".peer.npz"))
    return Comparison(peer_of(folder, "exit 1"), timeout_s=120)


def test_equal_logits_are_ok() -> None:
    recorded = recording()
    row = judge("llama-dense", recorded, [recorded.logits, recorded.logits * (1 + 1e-5)])
    assert row.verdict == "ok"
    assert row.prompt == pytest.approx(1e-10, rel=0.1)  # of the worse answer


@pytest.mark.parametrize("where", [3, N - 1])
@pytest.mark.parametrize("value", [9.0, np.nan])
def test_one_other_value_is_wrong(where: int, value: float) -> None:
    recorded = recording()
    other = recorded.logits.copy()
    other[where, 2] = value
    for answers in ([recorded.logits, other], [other, recorded.logits]):
        row = judge("llama-dense", recorded, answers)
        assert row.verdict == "wrong"
        assert row.prompt is not None and row.decode is not None
        assert (row.prompt < 1e-6) == (where >= N_PROMPT)
        assert (row.decode < 1e-6) == (where < N_PROMPT)


def test_other_shapes_are_wrong() -> None:
    recorded = recording()
    row = judge("llama-dense", recorded, [recorded.logits, recorded.logits[:, :4]])
    assert (row.verdict, row.prompt) == ("wrong", None)
    assert row.detail == f"logits have shape ({N}, 4), ({N}, 5) instead of ({N}, 5)"


def test_without_memory_only_the_prompt_is_compared() -> None:
    recorded = recording(has_memory=False)
    answer = recorded.logits[:N_PROMPT]
    row = judge("dream-dense", recorded, [answer, answer])
    assert (row.verdict, row.prompt, row.decode) == ("ok", 0.0, None)


def test_the_page() -> None:
    rows = [Row("gpt-oss-moe", "ok", "", 1e-13, 2e-13), Row("t5-dense", "refused", "a | b")]
    assert summary(rows) == "1 ok, 1 refused of 2 files"
    assert page(rows, "1.0", "2000-01-01").splitlines()[-2:] == [
        "| gpt-oss | moe | 1.0e-13 | 2.0e-13 | ok |",
        r"| t5 | dense |  |  | refused: a \| b |",
    ]


def test_some_rows_of_a_page_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "models.md"
    kept = text_of(ROOT / "docs" / "models.md")
    path.write_text(kept, encoding="utf-8")
    rows, version, date = read_page(kept)
    new = [Row("mamba-dense", "ok", "a | b < c", 1e-9), Row("aya-moe", "no peer", "it: asserts")]
    written = with_rows(path, new, version)
    read, *same = read_page(written)
    assert same == [version, date]
    assert read == sorted(
        [row for row in rows if row.name != "mamba-dense"] + new, key=lambda row: row.name
    )
    changed = set(written.splitlines()) - set(kept.splitlines())
    assert len(changed) == 3  # and the summary
    with pytest.raises(PeerError, match=r"is of llama-cpp-python .*, this is 9: leave out --only"):
        with_rows(path, new, "9")
    path.write_text("| architecture |")
    with pytest.raises(PeerError, match=r"it is no page that .* has written: leave out --only"):
        with_rows(path, new, version)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
@pytest.mark.parametrize(("only", "reason"), [("^zz", "no name in"), ("^llama", "No such file")])
def test_what_cannot_be_saved_fails_before_models_are_written_or_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    only: str,
    reason: str,
) -> None:
    def write(peer: Peer, folder: Path) -> None:
        assert only == "^llama"
        write_model(folder / "llama-dense.gguf", Tiny())

    monkeypatch.setattr(llama_archs, "write_models", write)
    monkeypatch.setattr(Comparison, "row", lambda *_: pytest.fail("it runs"))
    (tmp_path / "build" / "bin").mkdir(parents=True)
    (tmp_path / "llama_cpp").mkdir()
    peer = peer_of(tmp_path, "echo 1.0")
    options = ["--llama-cpp", tmp_path, "--bindings", tmp_path, "--peer", peer.python]
    options += ["--models", tmp_path, "--only", only, "--save", tmp_path / "none.md"]
    assert llama_archs.main([str(each) for each in options]) == 2
    assert reason in capsys.readouterr().err


def test_our_logits_are_compared(tmp_path: Path) -> None:
    model = write_model(tmp_path / "llama-dense.gguf", Tiny())
    recorded = recording()
    ours = our_logits.logits_of(model, recorded, flash_attn=False)
    recorded = replace(recorded, logits=ours)
    row = comparison_with(tmp_path, model, recorded).row(model)
    assert (row.verdict, row.detail) == ("ok", "")
    ours[5, 0] += 1
    assert comparison_with(tmp_path, model, recorded).row(model).verdict == "wrong"


def test_what_we_refuse_has_the_reason(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m-dense.gguf", Tiny())
    model.write_bytes(model.read_bytes()[:100])
    row = comparison_with(tmp_path, model, recording()).row(model)
    assert row.verdict == "refused"
    assert row.detail.startswith("GGUFError: ") and "m-dense" not in row.detail


def test_embeddings_are_compared_where_they_are_recorded(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m-dense.gguf", Tiny())
    recorded = replace(recording(), kind="embeddings")
    found = our_logits.logits_of(model, recorded, flash_attn=True)
    assert found.shape == (N, Tiny().n_embd)
    row = comparison_with(tmp_path, model, replace(recorded, logits=found)).row(model)
    assert row.verdict == "ok" and row.prompt is not None and row.prompt < 1e-10


def test_hanging_is_failing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m-dense.gguf", Tiny())
    recording().save(model.with_suffix(".peer.npz"))
    row = Comparison(peer_of(tmp_path, "exit 1"), timeout_s=0.01).row(model)
    assert (row.verdict, row.detail) == ("failed", "no answer after 0.01 s")


def test_logits_that_are_not_finite(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m-dense.gguf", Tiny())
    recorded = recording()
    recorded.logits[0, 0] = np.inf
    row = comparison_with(tmp_path, model, recorded).row(model)
    assert (row.verdict, row.detail) == ("no peer", "its logits are not finite")


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            'echo "/src/graph.cpp:7: GGML_ASSERT(n > 0) failed" >&2; echo frames >&2; kill -6 $$',
            "graph.cpp:7: GGML_ASSERT(n > 0) failed",
        ),
        ("echo progress >&2; echo cannot decode >&2; exit 1", "cannot decode"),
        ("echo progress >&2; kill -11 $$", "the process died with -11"),
        ("exec sleep 60", "no answer after 0.5 s"),
    ],
)
def test_a_peer_that_fails(tmp_path: Path, script: str, reason: str) -> None:
    model = tmp_path / "m-dense.gguf"
    model.touch()
    peer = peer_of(tmp_path, script, timeout_s=0.5 if "sleep" in script else 30)
    with pytest.raises(PeerError) as caught:
        peer.record(model, tmp_path / "m.npz")
    assert str(caught.value) == reason


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_what_is_kept_is_used_until_the_model_is_newer(tmp_path: Path) -> None:
    model, kept, fresh = (tmp_path / name for name in ("m.gguf", "m.npz", "fresh.npz"))
    model.touch()
    recording(7).save(fresh)
    recording(5).save(kept)
    peer = peer_of(tmp_path, f"cp {fresh} $4")
    assert peer.kept(model, kept).logits.shape == (N, 5)
    np.savez(kept, tokens=np.zeros(3))  # of an older version
    assert peer.kept(model, kept).logits.shape == (N, 7)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"--llama-cpp": "there/is/none"}, "--llama-cpp is there/is/none: it has no build/bin"),
        ({"--bindings": "none"}, "none has no package llama_cpp: --bindings names its folder"),
        ({"--peer": "none/python"}, "none/python: No such file or directory"),
        ({"--only": "^zz"}, "--only is '^zz': no name in "),
        ({"--only": "("}, "--only is '(', which is no regular expression: "),
    ],
)
@pytest.mark.parametrize(
    "tool", [llama_archs.main, record_seeded.main, record_logits.main], ids=lambda t: t.__module__
)
def test_options_that_cannot_be_used_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tool: Callable[[Sequence[str]], int],
    wrong: dict[str, str],
    reason: str,
) -> None:
    (tmp_path / "build" / "bin").mkdir(parents=True)
    (tmp_path / "llama_cpp").mkdir()
    write_model(tmp_path / "m-dense.gguf", Tiny())
    peer = peer_of(tmp_path, "echo 1.0")
    options = {"--llama-cpp": tmp_path, "--bindings": tmp_path, "--peer": peer.python, **wrong}
    arguments = [str(each) for pair in options.items() for each in pair]
    if tool is record_logits.main:
        arguments.append(str(tmp_path))
    elif tool is llama_archs.main:
        arguments += ["--models", str(tmp_path)]
    assert tool(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"error: {reason}")
    assert said.err.count("\n") == 1


def test_a_specification_of_an_architecture_that_is_not_registered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SPECS, "mine", spec("myllama"))
    assert record_seeded.main(["--llama-cpp", ".", "--only", "^mine$"]) == 2
    wanted = "error: specification mine: models/architectures/__init__.py has no line for 'myllama'"
    assert capsys.readouterr().err == f"{wanted}\n"
