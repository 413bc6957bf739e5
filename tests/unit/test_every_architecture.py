"""Every architecture has a tiny model that something compares, and a place in docs/models.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.arch_page import others, page, read_page
from benchmarks.peer_logits import PeerError
from ggmlpy import ShapeError, Unsupported
from ggmlpy.backends import get_backend
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models import ARCHITECTURES, load_model
from ggmlpy.models.architectures import REFUSED
from ggmlpy.models.blocks.layers import Layer
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory
from ggmlpy.runtime.context import Context
from tests.documents import ROOT, text_of
from tests.models.seeded import RECORDED, check_recorded, write_seeded
from tests.models.seeded_specs import COMPARED_WITH_NUMPY, SPECS
from tests.models.seeded_specs.keys import EXPERTS, GATE, HEAD_NORMS, QK_NORMS, spec
from tests.models.tiny import Tiny, write_model

PAGE = text_of(ROOT / "docs" / "models.md")


def test_every_architecture_has_a_model() -> None:
    missing = set(ARCHITECTURES) - {spec.architecture for spec in SPECS.values()}
    assert not missing, f"tests/models/seeded_specs lacks {', '.join(sorted(missing))}"


def test_every_model_is_recorded_or_compared_with_numpy() -> None:
    recorded = {key.partition("/")[0] for key in np.load(RECORDED).files}
    assert not recorded & COMPARED_WITH_NUMPY.keys()
    assert recorded | COMPARED_WITH_NUMPY.keys() == SPECS.keys(), (
        "tests/tools/record_seeded.py records what is missing; of an architecture that llama.cpp"
        " does not have, COMPARED_WITH_NUMPY of tests/models/seeded_specs names the test"
    )
    for name, file in COMPARED_WITH_NUMPY.items():
        assert f'"{name}"' in text_of(ROOT / "tests" / "models" / file)


def test_the_page_has_every_architecture() -> None:
    """In the table or in the lists over it, which follow from the table."""
    rows, version, date = read_page(PAGE)
    assert page(rows, version, date) == PAGE, "python -m benchmarks.arch_page writes the page anew"
    named = {row.architecture for row in rows}
    recorded, in_numpy = others(named)
    assert named | {*recorded, *in_numpy, *REFUSED} == {*ARCHITECTURES, *REFUSED}
    assert {row.verdict for row in rows if row.architecture in REFUSED} == {"refused"}


def test_an_architecture_that_nothing_compares_is_not_put_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, version, date = read_page(PAGE)
    known = sorted({row.architecture for row in rows if row.verdict == "ok"} | {"apertus", "bert"})
    monkeypatch.setattr("benchmarks.arch_page.ARCHITECTURES", (*known, "fernwood"))
    before, _, rest = PAGE.partition("\napertus, ")
    after = rest[rest.index("Files of these") :]
    with pytest.raises(PeerError, match=r"^fernwood: neither tests/models/seeded_logits\.npz nor"):
        page(rows, version, date)
    monkeypatch.setitem(SPECS, "fernwood", spec("fernwood"))
    monkeypatch.setitem(COMPARED_WITH_NUMPY, "fernwood", "test_fernwood.py")
    lists = (
        "\napertus, bert.\n\n"
        "llama.cpp does not have fernwood (`tests/models/test_fernwood.py`): compared with a plain"
        " forward\npass in numpy.\n\n"
    )
    assert page(rows, version, date) == before + lists + after


@dataclass(frozen=True, slots=True)
class Forgetful:
    """A layer that takes no `output_rows`."""

    layer: Layer

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.layer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        return self.layer(x, inputs, is_last=False)


@pytest.mark.parametrize("name", ["llama", "kimi-k3"])
def test_a_last_layer_that_gives_all_tokens_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = load_model(GGUFFile.open(write_seeded(tmp_path, name, SPECS[name])))
    run = Context(model, [get_backend("null", 1)], n_ctx=64)
    monkeypatch.setattr(model, "layers", [Forgetful(layer) for layer in model.layers])  # type: ignore[attr-defined]
    wanted = r"^the last layer gives \[64, T\]: it must give \[64, O\]: a Layer takes `output_rows`"
    with pytest.raises(ShapeError, match=wanted):
        run.decode([1, 2, 3])


@pytest.mark.parametrize("architecture", REFUSED)
def test_refused(tmp_path: Path, architecture: str) -> None:
    changes = {"general.architecture": architecture}
    path = write_model(tmp_path / "m.gguf", Tiny(), **changes)
    wanted = f'm.gguf: architecture "{architecture}" is not supported: {REFUSED[architecture]}'
    with pytest.raises(Unsupported, match=f"^{re.escape(wanted)}$"):
        load_model(GGUFFile.open(path))


def test_refact_with_experts_is_refused(tmp_path: Path) -> None:
    path = write_seeded(tmp_path, "refact", SPECS["refact"])
    load_model(GGUFFile.open(path))
    with pytest.raises(Unsupported, match=r"refact with experts is not supported: llama\.cpp"):
        write_seeded(
            tmp_path, "m", replace(SPECS["refact"], keys={**SPECS["refact"].keys, **EXPERTS})
        )


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        ("optional", QK_NORMS + r"|.*\.attn_(gate|x)\.weight", r".*\.attn_(gate|x)\.weight"),
        ("without", GATE + r"|outputs\.weight", r"outputs\.weight"),
        ("shapes", HEAD_NORMS | {r".*\.attn_gate\.weight": (64, 64)}, r".*\.attn_gate\.weight"),
        ("shapes", HEAD_NORMS | {r".*\.attn_q\.weight": (64, 64)}, r".*\.attn_q\.weight"),
        ("renamed", {r"blk\.(\d)\.norm\.weight": "x"}, r"blk\.(\d)\.norm\.weight"),
    ],
)  # fmt: skip
def test_a_pattern_of_no_tensor_is_an_error(
    tmp_path: Path, where: str, value: object, told: str
) -> None:
    made = replace(SPECS["qwen3"], **{where: value})  # type: ignore[arg-type]
    what = "whose shape qwen3 reads" if where == "shapes" else "that qwen3 looks for"
    wanted = f"specification q: {where} has {told!r}: no tensor {what}"
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
        write_seeded(tmp_path, "q", made, strict=True)
    write_seeded(tmp_path, "q", made)


def test_every_pattern_has_a_tensor(tmp_path: Path) -> None:
    for name, made in SPECS.items():
        write_seeded(tmp_path, name, made, strict=True).unlink()


def test_another_file_than_the_recorded_one_says_what_to_do(tmp_path: Path) -> None:
    path = write_seeded(tmp_path, "kimi.k3", SPECS["llama"])
    with pytest.raises(AssertionError, match=r"--only '\^kimi\\\.k3\$'; else compare its tensors"):
        check_recorded(path, "kimi.k3", "another")
