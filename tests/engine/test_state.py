"""Saved states load into memories of another kind, and damaged ones change nothing."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggmlpy.errors import CacheFull, FileError, MissingFile, StateError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import I32, type_of
from ggmlpy.memory.state import put_state, put_states, take_state
from ggmlpy.memory.state_file import VERSION, from_bytes, read_file, to_bytes, write_file
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.tiny import Tiny, write_model

TEXT = np.random.default_rng(2).integers(3, 288, 20).tolist()
MODEL = Tiny(n_head=2, n_head_kv=1, n_rot=32)


def make(folder: Path, model: Tiny = MODEL, **options: Any) -> Context:
    path = folder / f"{hash(model)}.gguf"
    if not path.exists():
        write_model(path, model)
    kv = type_of(options.pop("kv", "f16"))
    settings = {"n_ctx": 128, "n_seq_max": 2, "type_k": kv, "type_v": kv, **options}
    return Context(load_model(GGUFFile.open(path)), backends_for("reference"), **settings)


@pytest.mark.parametrize(
    ("layout", "to"), [("unified", "split"), ("split", "paged"), ("paged", "unified")]
)
@pytest.mark.parametrize("flash_attn", [False, True], ids=["separate ops", "flash"])
@pytest.mark.parametrize("n_ctx", [64, 512])
def test_a_state_goes_on_where_it_was_taken(
    tmp_path: Path, layout: str, to: str, flash_attn: bool, n_ctx: int
) -> None:
    source = make(tmp_path, kv_layout=layout, flash_attn=flash_attn)
    source.decode([7, 8], seq=0)
    source.decode(TEXT, seq=1)
    data = to_bytes({1: take_state(source.memory, 1, TEXT)})
    want = source.decode([99], seq=1).copy()
    target = make(tmp_path, kv_layout=to, flash_attn=flash_attn, n_ctx=n_ctx)
    target.decode([5, 5, 5], seq=0)  # something is in the way
    states, _ = from_bytes(data)
    assert states[1].tokens == TEXT
    put_state(target.memory, 0, states[1])
    assert target.n_past(0) == len(TEXT)
    np.testing.assert_allclose(target.decode([99], seq=0), want, rtol=1e-5, atol=1e-6)


def test_kv_types_are_converted(tmp_path: Path) -> None:
    source = make(tmp_path, kv="f32")
    source.decode(TEXT, seq=0)
    state = take_state(source.memory, 0)
    want = source.decode([99], seq=0).astype(np.float64)
    for kv, limit in (("f32", 1e-12), ("f16", 1e-5), ("q8_0", 1e-3)):
        target = make(tmp_path, kv=kv)
        put_state(target.memory, 0, state)
        got = target.decode([99], seq=0)
        assert ((got - want) ** 2).sum() / (want**2).sum() < limit


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    source = make(tmp_path)
    source.decode(TEXT, seq=0)
    state = take_state(source.memory, 0)
    deeper = make(tmp_path, Tiny(n_head=2, n_head_kv=1, n_rot=32, n_layer=3))
    wider = make(tmp_path, Tiny(n_head=2, n_head_kv=2, n_rot=32))
    for other, message in (
        (deeper, "of 2 layers, the model of 3"),
        (wider, r"\(32 elements\), the model's has 64"),
    ):
        other.decode([5], seq=0)
        with pytest.raises(StateError, match=message):
            put_state(other.memory, 0, state)
        assert other.n_past(0) == 1


def test_a_state_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    source = make(tmp_path)
    source.decode(TEXT, seq=0)
    small = make(tmp_path, n_ctx=16)
    small.decode([5, 6], seq=0)
    with pytest.raises(CacheFull, match="a state of 20 tokens does not fit"):
        put_state(small.memory, 0, take_state(source.memory, 0))
    assert small.n_past(0) == 2


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(tmp_path)
    source.decode(TEXT, seq=0)
    states = {0: take_state(source.memory, 0, TEXT)}
    file = tmp_path / "a.state"
    write_file(file, states, {"model": "tiny"})
    loaded, about = read_file(file)
    assert about == {"model": "tiny"}
    np.testing.assert_array_equal(loaded[0].layers[0].k, states[0].layers[0].k)
    before = file.read_bytes()

    def fail(fd: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(FileError, match=r"a\.state: the state cannot be written: disk full"):
        write_file(file, states)
    with pytest.raises(FileError, match=r"/nowhere/.*cannot be written: No such file or directory"):
        write_file(tmp_path / "nowhere" / "a.state", states)
    assert file.read_bytes() == before
    assert not list(tmp_path.glob(".a.state*"))


def test_states_that_contradict_themselves_change_nothing(tmp_path: Path) -> None:
    """A stranger's file may have the right digest."""
    source = make(tmp_path)
    source.decode(TEXT, seq=0)
    state = take_state(source.memory, 0)
    first, second = state.layers[0], state.layers[1]
    backwards = first.positions[::-1].copy()
    shorter = replace(second, positions=second.positions[:-1], k=second.k[:-1], v=second.v[:-1])
    for layers, message in (
        ({0: first, 1: shorter}, "positions of layer 1 are not those of its neighbours"),
        ({0: replace(first, positions=backwards), 1: second}, "layer 0 are not in order from 0"),
        ({0: replace(first, positions=first.positions - 1), 1: second}, "not in order from 0"),
        ({0: first, 1: replace(second, k=second.k[:, :-1])}, "K of layer 1 has .* bytes of f16"),
        ({0: first, 1: replace(second, v_type=I32)}, "V of layer 1 is i32: no cache is"),
    ):
        with pytest.raises(StateError, match=message):
            put_state(source.memory, 0, replace(state, layers=layers))
        assert source.n_past(0) == len(TEXT)


@pytest.mark.parametrize(
    "header", ['{"sequences": {"0": {"layers": [{"n_tokens": Infinity}]}}}', "[" * 10_000, "[]"]
)
def test_headers_that_mean_harm(header: str) -> None:
    body = struct.pack("<13sIQ", b"ggmlpy state\0", VERSION, len(header)) + header.encode()
    with pytest.raises(StateError, match="header contradicts its contents"):
        from_bytes(body + hashlib.sha256(body).digest())


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = make(tmp_path_factory.mktemp("state"))
    source.decode(TEXT[:3], seq=0)
    return to_bytes({0: take_state(source.memory, 0, TEXT[:3])})


def changed(data: bytes, *path: str | int, value: Any) -> bytes:
    """A state's bytes with another value in the header, and the digest that belongs to them."""
    start = struct.calcsize("<13sIQ")
    end = start + struct.unpack_from("<13sIQ", data)[2]
    header = json.loads(data[start:end])
    *parents, last = path
    parent = header["sequences"]
    for key in parents:
        parent = parent[key]
    parent[last] = value
    text = json.dumps(header).encode()
    body = struct.pack("<13sIQ", b"ggmlpy state\0", VERSION, len(text)) + text + data[end:-32]
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("0", "layers", 0, "n_tokens"), "3"),
        (("0", "layers", 0, "n_tokens"), 3.0),
        (("0", "layers", 0, "layer"), False),
        (("0", "layers", 1, "layer"), 0),  # twice
        (("0", "layers", 0, "k_row_bytes"), 2**62),
        (("0", "layers", 0, "k_type"), "9" * 10_000),
        (("0", "layers", 0, "forgotten"), [[2**40, 2**40 + 1]]),
        (("0", "layers", 0, "forgotten"), [["0", "1"]]),
        (("0", "layers", 0, "forgotten"), [[5, 2]]),
        (("0", "tokens"), "123"),
        (("0", "tokens"), [1.5, 2, 3]),
        (("-1",), {"tokens": [], "layers": [], "recurrent": []}),
        (("00",), {"tokens": [], "layers": [], "recurrent": []}),
    ],
)
def test_numbers_in_a_header_are_taken_as_they_are(
    good: bytes, path: tuple[str | int, ...], value: object
) -> None:
    """`int` would take text, fractions and booleans for numbers."""
    assert changed(good, "0", "tokens", value=TEXT[:3]) == good
    with pytest.raises(StateError, match="header contradicts its contents") as raised:
        from_bytes(changed(good, *path, value=value))
    assert len(str(raised.value)) < 300


def test_a_load_that_is_interrupted_leaves_no_part_of_a_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever array was being written."""
    model = Tiny("lfm2", n_layer=3, head_size=32, n_rot=32, qk_norm=True, convolutions=(0, 2))
    run = make(tmp_path, model)
    run.decode(TEXT, seq=0)
    run.decode(TEXT[:4], seq=1)
    state, kept = take_state(run.memory, 0), take_state(run.memory, 1)
    loads: list[Callable[[], None]] = [
        lambda: put_state(run.memory, 0, state),
        lambda: put_states(run.memory, {0: state, 1: kept}),
    ]
    for load, n_left in zip(loads, (len(kept.layers[1].positions), 0), strict=True):
        for step in ("state._put_recurrent", "store.KVStore.write_rows"):
            put_states(run.memory, {0: state, 1: kept})
            with monkeypatch.context() as patch:
                patch.setattr(f"ggmlpy.memory.{step}", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    load()
            assert run.n_past(0) == 0
            assert (run.n_past(1), run.memory.n_used()) == (n_left, n_left)
            assert run.memory.recurrent is not None
            assert not any(state.any() for state in run.memory.recurrent.read(0).values())


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def test_files_that_are_not_states(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        read_file(tmp_path / "nothing")
    for data, message in (
        (b"", "not a ggmlpy state"),
        (b"GGUF" + bytes(100), "not a ggmlpy state"),
        (b"ggmlpy state\0" + bytes(100), "version 0"),
        (
            b"ggmlpy state\0\1" + bytes(100),
            "version 1 of the format, this reads 4 and 5: it must be made",
        ),
    ):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(StateError, match=message):
            read_file(tmp_path / "x")


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damage_is_always_found(good: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        bad = good[:at]
    else:
        bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    with pytest.raises(StateError):
        from_bytes(bad)
