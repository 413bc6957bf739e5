"""Random-weight models: complete for their architecture, of sane values, of the right size."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.models import (
    FILE_TYPES,
    SHAPES,
    ModelShape,
    planned_tensors,
    random_rows,
    write_model,
)
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.types import type_of
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from ggmlpy.text.tokenizer import Tokenizer

TOKENS = [1, 5, 77, 9]


def reduced(name: str) -> ModelShape:
    """The shape with what makes it large taken down; layers of every kind are left."""
    shape = SHAPES[name]
    smaller = replace(
        shape, n_layer=3, n_embd=shape.n_embd_head * 4, n_head=4, n_head_kv=2, n_ff=256,
        n_vocab=300, n_ctx=128,
    )  # fmt: skip
    return replace(smaller, attention_layers=(2,)) if shape.attention_layers else smaller


def written(path: Path, name: str, file_type: str, shape: ModelShape) -> GGUFFile:
    write_model(path, name, shape, file_type)
    return GGUFFile.open(path)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_loads_and_runs(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / "m.gguf", name, "q8_0", reduced(name))
    model = load_model(file)
    logits = Context(model, backends_for("reference"), n_ctx=16).decode(TOKENS, all_logits=True)
    assert model.weights.unused() == []
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3  # of normed activations times weights of 1 / sqrt(n_in)
    assert not np.allclose(logits[0], logits[1])


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_a_file_type_loads_and_runs(tmp_path: Path, file_type: str) -> None:
    file = written(tmp_path / "m.gguf", "tiny", file_type, SHAPES["tiny"])
    logits = Context(load_model(file), backends_for("reference"), n_ctx=16).decode(TOKENS)
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3
    types = {info.type.name for info in file.tensors.values() if info.n_dims > 1}
    if file_type.endswith("_M"):
        assert types == {file_type[:-2], "q6_K"}
    else:
        large = "q6_K" if type_of(file_type).is_quantized and file_type != "q8_0" else file_type
        assert types == {file_type, large}


@pytest.mark.parametrize(
    ("name", "n_parameters"),
    [  # of the published checkpoints, with tied embeddings counted once
        ("Llama-3.2-1B", 1_235_814_400),
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-3B", 3_085_938_688),
        ("Gemma-3-1B", 999_885_952),
        ("Gemma-3-4B", 3_880_263_168),
        ("LFM2-1.2B", 1_170_340_608),
    ],
)
def test_real_shapes_have_as_many_parameters(name: str, n_parameters: int) -> None:
    planned = planned_tensors(SHAPES[name], "f16")
    counted = [t for t in planned if t.name != "rope_freqs.weight"]
    assert sum(t.n_rows * t.n for t in counted) == n_parameters


def test_a_hollow_file_has_all_but_the_values(tmp_path: Path) -> None:
    shape = reduced("Gemma-3-1B")
    for hollow in (False, True):
        write_model(tmp_path / f"{hollow}.gguf", "x", shape, "q4_0", hollow=hollow)
    paths = [tmp_path / f"{hollow}.gguf" for hollow in (False, True)]
    full, empty = map(GGUFFile.open, paths)
    assert full.tensors.keys() == empty.tensors.keys()
    assert all(full.tensors[name].offset == t.offset for name, t in empty.tensors.items())
    assert paths[0].stat().st_size == paths[1].stat().st_size


def test_numbers_are_stored_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    """It refuses a file whose counts are signed."""
    path = tmp_path / "m.gguf"
    write_model(path, "x", reduced("Gemma-3-4B"), "q4_0")
    fields = gguf.GGUFReader(path).fields
    scalars = {key: f.types[0] for key, f in fields.items() if not key.startswith("GGUF.")}
    assert gguf.GGUFValueType.INT32 not in scalars.values()
    assert scalars["gemma3.context_length"] is gguf.GGUFValueType.UINT32
    assert scalars["gemma3.attention.layer_norm_rms_epsilon"] is gguf.GGUFValueType.FLOAT32
    assert fields["gemma3.rope.scaling.factor"].contents() == 8.0
    assert fields["general.file_type"].contents() == int(gguf.LlamaFileType.MOSTLY_Q4_0)


@pytest.mark.parametrize("type", ["f16", "q4_0", "q5_1", "q8_0", "iq4_nl", "q2_K", "q3_K", "q5_K"])
def test_values_are_of_the_wanted_size(type: str) -> None:
    rng = np.random.default_rng(0)
    values = to_float(random_rows(rng, type_of(type), 64, 1024, 1 / 32), type_of(type))
    assert np.sqrt(np.square(values).mean()) == pytest.approx(1 / 32, rel=0.1)
    assert abs(values.mean()) < 0.25 / 32


def test_rows_that_are_not_whole_blocks_take_llama_cpps_other_type(tmp_path: Path) -> None:
    shape = replace(reduced("Qwen2.5-0.5B"), n_embd=192)
    file = written(tmp_path / "m.gguf", "x", "q4_K_M", shape)
    types = {name: info.type.name for name, info in file.tensors.items()}
    assert types["token_embd.weight"] == "q8_0"
    assert types["blk.1.ffn_up.weight"] == "q5_0"
    assert types["blk.1.ffn_down.weight"] == "q4_K"
    assert types["blk.2.ffn_down.weight"] == "q6_K"


def test_llama3s_frequencies_are_scaled_as_published(tmp_path: Path) -> None:
    """Wavelengths up to 2048 as they are, from 8192 on 32 times as long."""
    file = written(tmp_path / "m.gguf", "x", "f32", reduced("Llama-3.2-1B"))
    factors = np.frombuffer(bytes(file.tensors["rope_freqs.weight"].data), np.float32)
    wavelengths = 2 * np.pi * 500_000 ** (np.arange(32) / 32)
    assert (factors[wavelengths < 2048] == 1).all()
    assert (factors[wavelengths > 8192] == 32).all()
    between = factors[(wavelengths > 2048) & (wavelengths < 8192)]
    assert len(between) >= 3
    assert ((between > 1) & (between < 32) & (np.diff(between, append=32) > 0)).all()


@pytest.mark.parametrize("name", ["tiny", "Llama-3.2-1B", "Qwen2.5-0.5B", "LFM2-1.2B"])
def test_the_vocabulary_spells_any_text(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / "m.gguf", "x", "q8_0", reduced(name))
    tokenizer = Tokenizer.from_metadata(file.metadata, "m.gguf")
    text = "Grüße, world\n"
    assert tokenizer.decode(tokenizer.encode(text)).strip(" ") == text


def test_a_bpe_vocabulary_has_the_real_ones_size(tmp_path: Path) -> None:
    """Llama 3's tokens and merges; the made-up words are found again as tokens."""
    shape = replace(reduced("Llama-3.2-1B"), n_vocab=128_256)
    file = written(tmp_path / "m.gguf", "x", "q8_0", shape)
    assert len(file.metadata.array("tokenizer.ggml.tokens")) == 128_256
    assert len(file.metadata.array("tokenizer.ggml.merges")) == 280_147
    tokenizer = Tokenizer.from_metadata(file.metadata, "m.gguf")
    word = next(i for i in range(100_000, 128_000) if tokenizer.text(i).isascii())
    assert tokenizer.encode(tokenizer.text(word)) == [word]
    special = tokenizer.encode("<|begin_of_text|>hi<|eot_id|>", special=True)
    assert (special[0], special[-1]) == (tokenizer.bos_id, tokenizer.eos_id)


def test_the_command_writes_the_same_file_for_a_seed(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "models.py"
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        command = [sys.executable, str(script), "tiny", "q4_0", str(tmp_path / name)]
        done = subprocess.run([*command, "--seed", seed], capture_output=True, check=True)
        assert b" MB in " in done.stdout
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c
