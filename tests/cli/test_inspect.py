"""`ggmlpy inspect`: what it shows of a file, and that no file can break a terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from ggmlpy.cli.model_plan import ModelPlan
from ggmlpy.gguf import GGUFFile
from tests.cli.conftest import Run
from tests.gguf_builder import Raw, Typed, build_gguf
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.shared import shared_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    metadata = {
        "general.architecture": "llama",
        "general.file_type": 15,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(1000)],
        "tokenizer.ggml.add_bos_token": True,
        "odd.nan": float("nan"),
        "odd.wide": Typed("u64", 2**64 - 1),
        "odd.nested": [[1, 2, 3], [4]],
        "odd.text": "two\nlines, \x1b[31mred, \u202ebackwards",
        "odd.bytes": b"\xff\xfe",
        "odd.empty": Typed("f32", []),
    }
    tensors = {
        "a.weight": ("q4_0", (64, 3), bytes(18 * 6)),
        "b.weight": ("f32", (5,), np.zeros(5, np.float32).tobytes()),
        "c.weight": ("q4_0", (32, 2, 2), bytes(18 * 4)),
    }
    return build_gguf(tmp_path / "some.gguf", metadata, tensors)


def test_what_a_terminal_shows(run: Run, file: Path) -> None:
    outcome = run("inspect", file, "--tensors")
    assert outcome.code == 0
    assert outcome.err == ""
    rows = [line.split(maxsplit=2) for line in outcome.out.splitlines()]
    for row in (
        ["general.architecture", "str", '"llama"'],
        ["general.file_type", "u32", "15 (Q4_K_M)"],
        ["llama.rope.freq_base", "f32", "10000"],
        ["tokenizer.ggml.tokens", "arr[str]", '1000: "t0", "t1", "t2", "t3", "t4", …'],
        ["tokenizer.ggml.add_bos_token", "bool", "true"],
        ["odd.nan", "f32", "nan"],
        ["odd.wide", "u64", "18446744073709551615"],
        ["odd.nested", "arr[arr[i32]]", "2: [1, 2, 3], [4]"],
        ["odd.text", "str", r'"two\nlines, \x1b[31mred, \u202ebackwards"'],
        ["odd.bytes", "str", r'"\udcff\udcfe"'],
        ["odd.empty", "arr[f32]", "0:"],
        ["a.weight", "q4_0", "[64, 3]     108 B"],
        ["c.weight", "q4_0", "[32, 2, 2]   72 B"],
    ):
        assert row in rows, row
    assert outcome.out.startswith("some.gguf: GGUF version 3, little-endian, 11 keys, 3 tensors\n")
    totals = [line.split() for line in outcome.out.splitlines()[-3:]]
    assert totals == [
        ["q4_0", "2", "320", "180", "B", "4.50"],
        ["f32", "1", "5", "20", "B", "32.00"],
        ["all", "3", "325", "200", "B", "4.92"],
    ]


def test_lines_have_no_spaces_at_their_ends(run: Run, file: Path) -> None:
    lines = run("inspect", file, "--tensors").out.splitlines()
    assert all(line == line.rstrip() for line in lines)


def test_keys_are_chosen_by_a_regex(run: Run, file: Path) -> None:
    told = json.loads(run("inspect", file, "--keys", r"rope|^odd\.w", "--json").out)
    assert list(told["metadata"]) == ["llama.rope.freq_base", "odd.wide"]
    message = run("inspect", file, "--keys", "(").usage_error
    assert "'--keys': '(' is not a regular expression" in message


def test_json_is_one_line_of_plain_json(run: Run, file: Path) -> None:
    out = run("inspect", file, "--json", "--tensors").out
    assert out.count("\n") == 1
    assert out.isascii()
    told = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert told["metadata"]["tokenizer.ggml.tokens"] == {
        "type": "arr[str]",
        "length": 1000,
        "first": [f"t{i}" for i in range(16)],
    }
    assert told["metadata"]["odd.nan"] == {"type": "f32", "value": "nan"}
    assert told["metadata"]["odd.nested"]["first"] == [[1, 2, 3], [4]]
    assert told["metadata"]["odd.wide"]["value"] == 2**64 - 1
    assert told["total"] == {
        "n_tensors": 3, "n_elements": 325, "n_bytes": 200, "bits_per_weight": 4.9231,
    }  # fmt: skip
    assert [(t["name"], t["ne"]) for t in told["tensors"]] == [
        ("a.weight", [64, 3]), ("b.weight", [5]), ("c.weight", [32, 2, 2]),
    ]  # fmt: skip


def test_the_gguf_package_reads_the_same(run: Run) -> None:
    path = shared_path("stories260K.gguf")
    told = json.loads(run("inspect", path, "--json", "--tensors").out)
    reader = gguf.GGUFReader(path)
    own = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert set(told["metadata"]) == set(own)
    for key, field in own.items():
        entry = told["metadata"][key]
        if "value" in entry:
            assert entry["value"] == pytest.approx(field.contents())
        else:
            assert entry["length"] == len(field.data)
    assert [(t["name"], t["ne"], t["n_bytes"]) for t in told["tensors"]] == [
        (t.name, t.shape.tolist(), t.n_bytes) for t in reader.tensors
    ]


def test_only_a_few_elements_of_a_large_array_are_decoded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggmlpy.gguf import LazyArray

    path = shared_path("vocab/ggml-vocab-llama-bpe.gguf")  # 128,256 tokens
    decoded: list[int] = []
    item = LazyArray.__getitem__

    def counted(self: LazyArray, index: slice) -> list[object]:
        elements: list[object] = item(self, index)
        decoded.append(len(elements))
        return elements

    def refused(self: LazyArray) -> list[object]:
        raise AssertionError("the whole array is decoded")

    monkeypatch.setattr(LazyArray, "__getitem__", counted)
    for kind in LazyArray.__subclasses__():
        monkeypatch.setattr(kind, "tolist", refused)
    out = run("inspect", path).out
    assert 'arr[str]  128256: "!"' in out
    assert 0 < sum(decoded) < 100


def test_file_without_tensors_or_with_a_strange_name(run: Run, tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "a\nb.gguf", {"general.file_type": 9999})
    lines = run("inspect", path).out.splitlines()
    assert lines[0] == r"a\nb.gguf: GGUF version 3, little-endian, 1 keys, 0 tensors"
    assert lines[-1] == "general.file_type  u32   9999 (unknown)"


def test_raw_damage_is_one_line(run: Run, tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "bad.gguf", {"k\x1b": Raw(b"\xc8\0\0\0")})
    assert run("inspect", path).error.startswith(r'bad.gguf: key "k\u001b" has the unknown value')


def test_the_plan_of_a_model(run: Run, tmp_path: Path) -> None:
    path = write_seeded(tmp_path, "m", SPECS["gemma4"])
    shown = run("inspect", path, "--keys", "nothing", "--plan").out.splitlines()
    assert shown[-5].startswith("architecture: gemma4, 6 layers. Gemma 4: ")
    assert shown[-4:] == [
        "memory: layers 1, 3: K and V (2 heads of 24) of all tokens",
        "memory: layers 0, 2: K and V (2 heads of 16) of a window of 7 tokens",
        "tensors without use: none",
        "keys without use: gemma4.attention.layer_norm_epsilon",
    ]


def test_the_plan_tells_of_what_has_no_use(run: Run, tmp_path: Path) -> None:
    spec = replace(
        SPECS["falcon-h1"], extra={"blk.{i}.attn_sub_norm.weight": (64,)},
        keys=dict(SPECS["falcon-h1"].keys) | {"residual_scale": 0.5, "logit_scale": 1.0},
    )  # fmt: skip
    path = write_seeded(tmp_path, "m", spec)
    plan = json.loads(run("inspect", path, "--plan", "--json").out)["plan"]
    assert plan["memory"] == [
        "layers 0 to 1: K and V (1 head of 16) of all tokens",
        "layers 0 to 1: 2 states, of 528 and 1920 numbers",
    ]
    assert plan["unused_tensors"] == ["blk.0.attn_sub_norm.weight", "blk.1.attn_sub_norm.weight"]
    assert {"falcon-h1.residual_scale", "falcon-h1.logit_scale"} <= set(plan["unread_keys"])
    assert plan["ignored_keys"] == ["falcon-h1.residual_scale"]


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("deepseek2", ["layers 0 to 1: K (1 head of 40), of which V is a part, of all tokens"]),
        (
            "lfm2",
            [
                "layer 1: K and V (2 heads of 16) of all tokens",
                "layer 3: K and V (1 head of 16) of all tokens",
                "layers 0, 2, 4: a state of 128 numbers",
            ],
        ),
        ("rwkv7", ["layers 0 to 2: 3 states, of 128, 8192 and 128 numbers"]),
        ("llada", ["layers 0 to 1: K and V (2 heads of 24) of all tokens, also those behind"]),
        (
            "gemma-embedding",
            [
                "layer 5: K and V (2 heads of 24) of all tokens, also those behind",
                "layers 0 to 4, 6: K and V (2 heads of 24) of a window of 12 tokens to both sides",
            ],
        ),
    ],
)
def test_what_layers_keep_of_past_tokens(tmp_path: Path, name: str, memory: list[str]) -> None:
    file = GGUFFile.open(write_seeded(tmp_path, "m", SPECS[name]))
    assert ModelPlan.of(file).memory == memory


def test_the_model_may_be_an_option(run: Run, tiny: Path) -> None:
    assert run("inspect", "-m", tiny).out == run("inspect", tiny).out
    both = run("inspect", "-m", tiny, tiny).usage_error
    assert both == "FILE cannot be used together with -m, -hf or -mu"
