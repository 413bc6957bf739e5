"""LoRA adapters and control vectors on the command line: as `Llama` has them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import Llama
from tests.adapters import write_adapter, write_control_vector
from tests.cli.conftest import Run
from tests.models.tiny import Tiny, write_model

TEXT = "A text of some words."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    path = write_model(folder / "tiny.gguf", Tiny(n_layer=4, n_ctx=512))
    for i in range(3):
        write_adapter(folder / f"{i}.gguf", path, seed=i)
    for i in range(2):
        write_control_vector(folder / f"control-{i}.gguf", path, seed=i)
    return folder


def text_of(folder: Path, **options: Any) -> str:
    with Llama(folder / "tiny.gguf", backend="reference", **options) as llm:
        text: str = llm(TEXT, max_tokens=12, temperature=0)["choices"][0]["text"]
    return text


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("--lora {0}", {"lora_adapters": [("0", 1.0)]}),
        ("--lora {0},{1}", {"lora_adapters": [("0", 1.0), ("1", 1.0)]}),
        ("--lora {0} --lora {1}", {"lora_adapters": [("0", 1.0), ("1", 1.0)]}),
        (
            "--lora-scaled {0}:0.5,{1}:-2 --lora {2}",
            {"lora_adapters": [("2", 1.0), ("0", 0.5), ("1", -2.0)]},
        ),
        ("--control-vector {control-0}", {"control_vectors": [("control-0", 1.0)]}),
        (
            "--control-vector-scaled {control-0}:0.5 --control-vector {control-1}"
            " --control-vector-layer-range 2 3",
            {
                "control_vectors": [("control-1", 1.0), ("control-0", 0.5)],
                "control_vector_layer_range": (2, 3),
            },
        ),
    ],
)
def test_generate_has_them(
    run: Run, folder: Path, arguments: str, options: dict[str, Sequence[Any]]
) -> None:
    files = {path.stem: str(path) for path in folder.glob("*.gguf")}
    named = [word.format(*(files[f"{i}"] for i in range(3)), **files) for word in arguments.split()]
    model = ("-m", folder / "tiny.gguf", "--backend", "reference")
    outcome = run("generate", *model, "-p", TEXT, "-n", 12, "--temp", 0, "--json", *named)
    assert outcome.code == 0, outcome
    opened = {
        name: [(files[file], scale) for file, scale in value] if name != LAYERS else value
        for name, value in options.items()
    }
    text = json.loads(outcome.out)["text"]
    assert text == text_of(folder, **opened)
    assert text != text_of(folder)


LAYERS = "control_vector_layer_range"


def test_other_commands_have_them(run: Run, folder: Path) -> None:
    model, changes = ("-m", folder / "tiny.gguf"), ("--lora", folder / "0.gguf")
    text = ("-p", TEXT * 20)
    for command in (
        ("perplexity", "-c", 32, "--json", *text),
        ("embedding", "--pooling", "mean", *text),
    ):
        plain, changed = run(*command, *model), run(*command, *model, *changes)
        assert plain.code == changed.code == 0, changed
        assert plain.out != changed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lora-scaled", "a.gguf"), "'a.gguf' is not FILE:SCALE"),
        (("--lora-scaled", "a.gguf:x"), "'x' is not a number"),
        (("--lora-scaled", ":1"), "the name of the file is empty"),
        (("--lora", "missing.gguf"), "missing.gguf: there is no such file"),
        (("--lora", "{tiny}"), "tiny.gguf: this is a model: it must be a LoRA adapter"),
        (("--control-vector", "{0}"), "0.gguf: this is a LoRA adapter"),
        (("--control-vector-layer-range", 1, 2), "needs --control-vector"),
        (
            ("--control-vector", "{control-0}", "--control-vector-layer-range", 3, 2),
            "control_vector_layer_range is 3 to 2",
        ),
    ],
)
def test_errors_are_one_line(
    run: Run, folder: Path, arguments: tuple[Any, ...], message: str
) -> None:
    files = {path.stem: str(path) for path in folder.glob("*.gguf")}
    named = [a.format(files["0"], **files) if isinstance(a, str) else a for a in arguments]
    outcome = run("generate", "-m", folder / "tiny.gguf", *named)
    assert outcome.code != 0
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_verbose_lists_them(run: Run, folder: Path) -> None:
    model = ("-m", folder / "tiny.gguf", "-p", TEXT, "-n", 1, "-v")
    changes = ("--lora-scaled", f"{folder / '0.gguf'}:0.5")
    vectors = ("--control-vector", folder / "control-0.gguf")
    outcome = run("generate", *model, *changes, *vectors)
    assert outcome.code == 0
    assert re.search(r"lora 0 +0\.gguf: 28 weights, 0\.\d MB, scale 0\.5 unless", outcome.err)
    assert re.search(r"control vector +of 3 layers, 1 to 3", outcome.err)


def test_inspect_shows_an_adapter(run: Run, folder: Path) -> None:
    outcome = run("inspect", folder / "0.gguf", "--tensors")
    assert outcome.code == 0
    for part in ("adapter.lora.alpha", "adapter.type", "blk.0.attn_q.weight.lora_a"):
        assert part in outcome.out
    outcome = run("inspect", folder / "control-0.gguf", "--tensors")
    assert "direction.3" in outcome.out
