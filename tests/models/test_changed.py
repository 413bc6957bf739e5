"""LoRA adapters and control vectors as llama.cpp applies them, and control vectors by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peer_logits import N_PROMPT
from ggmlpy import Llama
from ggmlpy.backends import get_backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.errors import ArgumentError, GgmlpyError, Unsupported, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.llama_state import LlamaState
from ggmlpy.models import load_model
from ggmlpy.models.control_vector import ControlVector, open_control_vectors
from ggmlpy.models.weights import WeightWarning
from ggmlpy.runtime.context import Context
from tests.adapters import plain, write_control_vector, write_merged
from tests.gguf_builder import build_gguf
from tests.models.checks import nmse
from tests.models.seeded import KEPT_ROWS, write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.test_architectures import SHALLOW, TOKENS, context, in_turn
from tests.models.tiny import Tiny, write_model
from tests.tools.record_changed import CHANGED, RECORDED, SCALES, write_changes

KEPT = dict(np.load(RECORDED))
# The results of their layers are several streams, or parts of one.
NOT_STEERED = {
    "gemma3n", "glm5-next", "hrm_text", "hy_v4", "hy_v4-indexer", "qwen4exp", "t5", "t5-gated",
    "talkie",
}  # fmt: skip


def opened(run: Context, *files: Path, scale: float = 1.0) -> ControlVector | None:
    return open_control_vectors([(path, scale) for path in files], run.model.hparams)


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("name", CHANGED)
def test_logits_are_llama_cpps(tmp_path: Path, name: str, flash_attn: bool) -> None:
    files = write_changes(tmp_path, name)
    model = load_model(GGUFFile.open(files.model))
    run = context(model, flash_attn=flash_attn, n_ubatch=64)
    plain = in_turn(run)
    adapters = [run.load_lora(path) for path in files.adapters]
    run.clear()
    run.set_lora(dict(zip(adapters, SCALES, strict=True)), seq=0)
    changed = in_turn(run)
    assert nmse(changed[list(KEPT_ROWS)], KEPT[f"{name}/lora"]) < 1e-10
    run.clear()
    run.set_lora({}, seq=0)
    run.set_control_vector(opened(run, files.control))
    steered = in_turn(run)
    assert nmse(steered[list(KEPT_ROWS)], KEPT[f"{name}/control"]) < 1e-10
    assert min(nmse(changed, plain), nmse(steered, plain)) > 1e-3
    run.clear()
    run.set_control_vector(None)
    np.testing.assert_array_equal(in_turn(run), plain)


@pytest.mark.parametrize("name", [name for name in SHALLOW if SPECS[name].keys["block_count"] > 1])
def test_control_vectors_of_every_architecture(tmp_path: Path, name: str) -> None:
    """Alone, among others, without fused steps: the same bits; or refused."""
    path = write_seeded(tmp_path, name, SPECS[name])
    run = context(load_model(GGUFFile.open(path)), n_ubatch=64)
    layers = range(1, run.model.hparams.n_layer)
    write_control_vector(tmp_path / "control.gguf", path, seed=1, layers=layers)
    if name in NOT_STEERED:
        with pytest.raises(Unsupported, match="cannot have a control vector"):
            run.set_control_vector(opened(run, tmp_path / "control.gguf"))
        return
    plain = in_turn(run)
    run.clear()
    run.set_control_vector(opened(run, tmp_path / "control.gguf"))
    alone = in_turn(run)
    assert nmse(alone, plain) > 1e-3
    among = context(
        run.model, n_ctx=256, n_ctx_seq=64, n_seq_max=4, n_ubatch=256, kv_layout="unified",
        passes="none",
    )  # fmt: skip
    among.set_control_vector(opened(run, tmp_path / "control.gguf"))
    prompts = Batch()
    for seq, n in enumerate((3, N_PROMPT, 9)):
        prompts.add_sequence(seq, TOKENS[:n], 0, all_outputs=True)
    got = among.decode_batch(prompts)[3 : 3 + N_PROMPT]
    np.testing.assert_array_equal(got, alone[:N_PROMPT])


def test_a_direction_is_a_bias_of_its_layer(tmp_path: Path) -> None:
    """A bias of the feed-forward's last product adds the same; each is rounded once more there."""
    tiny = Tiny(n_layer=4)
    path = write_model(tmp_path / "tiny.gguf", tiny)
    first = write_control_vector(tmp_path / "a.gguf", path, seed=1)
    second = write_control_vector(tmp_path / "b.gguf", path, seed=2, layers=[2])
    files = [(tmp_path / "a.gguf", 0.5), (tmp_path / "b.gguf", -2.0)]
    for bounds in (None, (2, 3), (1, 1), (3, 99)):
        kept = range(1, 4) if bounds is None else range(bounds[0], bounds[1] + 1)
        biased = write_biased(tmp_path, path, 0.5 * first - 2.0 * second, kept)
        cpu = get_backend("cpu", 2)
        for backends in ("cpu", [MockBackend(seed=2, inner=cpu), cpu]):
            options = {} if backends == "cpu" else {"n_gpu_layers": 2}
            run = context(load_model(GGUFFile.open(path)), backends, **options)
            run.set_control_vector(open_control_vectors(files, run.model.hparams, bounds))
            got = run.decode(TOKENS, all_logits=True)
            want = context(load_model(GGUFFile.open(biased))).decode(TOKENS, all_logits=True)
            assert nmse(got, want) < 1e-10


def write_biased(tmp_path: Path, path: Path, directions: Any, kept: range) -> Path:
    merged = write_merged(tmp_path / "merged.gguf", path, [])
    with GGUFFile.open(merged) as file:
        tensors: dict[str, Any] = {
            name: ("f32", info.ne[: info.n_dims], info.data.tobytes())
            for name, info in file.tensors.items()
        }
        keys = [(key, plain(value)) for key, value in file.metadata.items()]
    for layer in range(1, len(directions) + 1):
        if layer in kept:
            bias = directions[layer - 1].astype(np.float32)
            tensors[f"blk.{layer}.ffn_down.bias"] = ("f32", (len(bias),), bias.tobytes())
    return build_gguf(tmp_path / "biased.gguf", keys, tensors)


def test_requests_do_not_reuse_what_other_vectors_gave(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    write_control_vector(tmp_path / "control.gguf", path, seed=1)
    vectors = [tmp_path / "control.gguf"]
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "logprobs": 1}
    prompt = TOKENS[:30]
    with Llama(path, n_ctx=128, n_seq_max=2, n_threads=2) as llm:
        plain = llm(prompt, **options)["choices"]
        embedded = llm.embed([prompt])[0]
        llm.set_control_vectors(vectors)
        steered = llm(prompt, **options)["choices"]
        assert llm.timings.n_reused == 0
        assert steered != plain
        assert not np.array_equal(llm.embed([prompt])[0], embedded)
        saved = LlamaState.from_bytes(llm.save_state().to_bytes())
        stream = llm(prompt, stream=True, max_tokens=8)
        next(stream)
        with pytest.raises(GgmlpyError, match="1 requests are running"):
            llm.set_control_vectors([])
        stream.close()
        llm.set_control_vectors([])
        assert llm(prompt, **options)["choices"] == plain
        assert llm.timings.n_reused == len(prompt) - 1
        np.testing.assert_array_equal(llm.embed([prompt])[0], embedded)
    with Llama(path, n_ctx=128, n_seq_max=2, n_threads=2, control_vectors=vectors) as llm:
        llm.load_state(saved)
        assert llm(prompt, **options)["choices"] == steered
        assert llm.timings.n_reused == len(prompt) - 1


def zeros(n: int, type: str = "f32") -> tuple[str, tuple[int, ...], bytes]:
    return type, (n,), bytes(4 * n)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({}, "has no direction of a layer that the model has"),
        ({"direction.0": zeros(64)}, r'"direction\.0": those of a control vector are named'),
        ({"direction.x": zeros(64)}, r'"direction\.x": those of a control vector are named'),
        ({"direction.1": zeros(32)}, r'"direction\.1" is f32 \[32\], it must be f32 \[64\]'),
        ({"direction.1": zeros(64, "f16")}, r'"direction\.1" is f16 \[64\], it must be f32'),
        ({"direction.2": zeros(64)}, "has no direction of a layer that the model has"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, tensors: dict[str, Any], match: str) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    keys = {"general.architecture": "controlvector"}
    control = build_gguf(tmp_path / "control.gguf", keys, tensors)
    with pytest.raises(WeightError, match=match):
        Llama(path, n_ctx=64, control_vectors=[control])


def test_what_is_said_of_files(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    run = context(load_model(GGUFFile.open(path)))
    with pytest.raises(WeightError, match=r"tiny\.gguf: this is a model: it must be a control vec"):
        opened(run, path)
    keys = {"general.architecture": "controlvector", "controlvector.model_hint": "gemma"}
    tensors = {f"direction.{i}": zeros(64) for i in (1, 2, 3)}
    control = build_gguf(tmp_path / "control.gguf", keys, tensors)
    with (
        pytest.warns(WeightWarning, match='made for architecture "gemma", the model is of "llama"'),
        pytest.warns(WeightWarning, match=r'"direction\.2", "direction\.3" have no effect'),
    ):
        opened(run, control)
    assert opened(run) is None
    for bounds in ((0, 3), (2, 1), (-1, 1)):
        with pytest.raises(ArgumentError, match=f"is {bounds[0]} to {bounds[1]}: it must be"):
            open_control_vectors([], run.model.hparams, bounds)
    with pytest.raises(WeightError, match="this is a control vector"):
        load_model(GGUFFile.open(control))
