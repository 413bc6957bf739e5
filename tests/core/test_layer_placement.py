"""Placement of layers and tensors: names of backends, and counts that nothing can follow."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from ggmlpy import ops
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import ArgumentError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import zeros
from ggmlpy.models import load_model
from ggmlpy.models.memory import AttentionLayers, KVSizes
from ggmlpy.runtime.context import Context
from ggmlpy.sched.executable import Executable
from ggmlpy.sched.placement import ALL, Placement, PlacementWarning
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.tiny import Tiny, write_model


@pytest.mark.parametrize("asked", ["Mock:A", "mock:a", "MOCK:A"])
def test_an_override_names_a_backend_in_any_case(asked: str) -> None:
    device = MockBackend("Mock:A")
    placement = Placement.of(2, [device, ReferenceBackend()], 0, {r"blk\.1": asked})
    assert placement.backend_of("blk.1.ffn_up.weight") is device
    assert placement.backend_of("blk.0.ffn_up.weight").name == "reference"


def test_an_override_prefers_the_name_as_it_is_written() -> None:
    one, two = MockBackend("mock:a"), MockBackend("Mock:A")
    for name, backend in (("mock:a", one), ("Mock:A", two)):
        assert Placement.of(1, [one, two], ALL, {"x": name}).backend_of("x") is backend


@pytest.mark.parametrize("n_gpu_layers", [0, 2])
def test_layers_left_to_a_host_without_a_backend_are_a_warning(n_gpu_layers: int) -> None:
    device = MockBackend()
    with pytest.warns(PlacementWarning, match=f"is {n_gpu_layers}, but no backend uses memory"):
        placement = Placement.of(2, [device], n_gpu_layers)
    assert set(placement.layers) == {device}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (ALL, 3, 99):
            Placement.of(2, [device], n)


def test_layers_on_devices_of_which_there_is_none_are_a_warning() -> None:
    with pytest.warns(PlacementWarning, match="is 2, but no device has .* of reference"):
        Placement.of(2, [ReferenceBackend()], 2)


def test_two_backends_of_one_name_are_refused() -> None:
    backends = [MockBackend(), MockBackend(), ReferenceBackend()]
    with pytest.raises(ArgumentError, match="two backends are named 'mock'"):
        Placement.of(2, backends)
    with pytest.raises(ArgumentError, match="two backends are named 'mock'"):
        Executable(Graph(ops.sqr(zeros("f32", (4,)))), backends)


def test_a_pattern_that_matches_nothing_is_a_warning(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny())
    with pytest.warns(PlacementWarning, match="'fnord', to lie on reference, matches no") as caught:
        Context.open(
            path,
            backend="reference",
            n_ctx=16,
            override_tensors={"fnord": "reference", "ffn": "reference"},
        )
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.placed
@pytest.mark.parametrize("n_gpu_layers", [ALL, 2, 1, 0])
def test_rope_runs_with_its_layer_wherever_the_shared_factors_lie(
    tmp_path: Path, n_gpu_layers: int
) -> None:
    """They are one tensor of the file, that no layer owns."""
    path = write_model(tmp_path / "model.gguf", Tiny(n_layer=3, freq_factors=True))
    context = Context.open(
        path, backend=[MockBackend(), ReferenceBackend()], n_ctx=64, n_gpu_layers=n_gpu_layers
    )
    context.decode([1, 2, 3])
    n_on_device = 3 if n_gpu_layers == ALL else max(0, n_gpu_layers - 1)  # and the output
    ropes = {name: ops["rope"] for name, ops in context.ops_by_backend().items() if ops["rope"]}
    expected = {"mock": 2 * n_on_device, "reference": 2 * (3 - n_on_device)}
    assert ropes == {name: n for name, n in expected.items() if n}


def test_tensors_beside_the_blocks_lie_with_the_output_the_first_block_or_the_input() -> None:
    device, host = MockBackend(), ReferenceBackend()
    for n_gpu_layers, first, last in ((ALL, device, device), (1, host, device), (0, host, host)):
        placement = Placement.of(2, [device, host], n_gpu_layers)
        for name in ("output_norm", "output_hc_fn", "cls.output", "dense_2"):
            assert placement.backend_of(f"{name}.weight") is last, name
        for name in ("token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm"):
            assert placement.backend_of(f"{name}.weight") is first, name
        for name in ("token_embd", "position_embd", "per_layer_token_embd"):
            assert placement.backend_of(f"{name}.weight") is host, name


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("lfm2", {"token_embd_norm"}),
        ("lfm2moe", {"token_embd_norm"}),
        ("gemma3n", {"output_norm", "altup_proj", "altup_unembd_proj"}),
        ("t5", {"dec.output_norm", "enc.output_norm"}),
    ],
)
def test_a_model_says_which_tensors_are_of_its_output(
    tmp_path: Path, arch: str, names: set[str]
) -> None:
    model = load_model(GGUFFile.open(write_seeded(tmp_path, arch, SPECS[arch])))
    device = MockBackend()
    placement = Placement.for_model(model, [device, ReferenceBackend()], 1)
    on_device = {n for n in model.weights.leaves if placement.backend_of(n) is device}
    assert on_device == {f"{name}.weight" for name in names | {"output"}}
    elsewhere = Placement.for_model(model, [device, ReferenceBackend()], 0, {"norm|altup": "mock"})
    assert all(elsewhere.backend_of(f"{name}.weight") is device for name in names)


@pytest.mark.placed
@pytest.mark.parametrize("n_gpu_layers", [ALL, 2, 1, 0])
def test_lfm2s_output_norm_lies_and_runs_with_its_output(tmp_path: Path, n_gpu_layers: int) -> None:
    """The file calls it as other models call the norm of their embeddings."""
    shape = Tiny(architecture="lfm2", n_layer=2, neox=True, qk_norm=True, convolutions=(0,))
    path = write_model(tmp_path / "model.gguf", shape)
    context = Context.open(
        path, backend=[MockBackend(), ReferenceBackend()], n_ctx=64, n_gpu_layers=n_gpu_layers
    )
    context.decode([1, 2, 3])
    leaves = context.model.weights.leaves
    place, first = leaves["token_embd_norm.weight"].place, leaves["blk.0.attn_norm.weight"].place
    assert place is not None and first is not None
    assert place.buffer.type.is_host == (n_gpu_layers == 0)
    assert first.buffer.type.is_host == (n_gpu_layers != ALL)
    norms = {name: ops["rms_norm"] for name, ops in context.ops_by_backend().items()}
    n_all = 2 * 2 + 2 + 1  # of two layers, of q and k of one, of the output
    n_on_device = {ALL: n_all, 2: 2 + 2 + 1, 1: 1, 0: 0}[n_gpu_layers]
    assert norms.get("mock", 0) == n_on_device
    assert norms.get("reference", 0) == n_all - n_on_device


def test_what_a_layer_stores_in_each_of_its_runs_lies_with_it() -> None:
    device, host = MockBackend(), ReferenceBackend()
    placement = Placement.of(2, [device, host], 2)
    found = placement.buffer_types((AttentionLayers({i: KVSizes(8, 8, 1) for i in range(6)}),))
    assert found == {i: (host, device)[i % 2].buffer_type for i in range(6)}
