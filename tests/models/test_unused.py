"""Tensors that a model does not use: one warning names them, but for those that have no effect."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggmlpy import Llama, WeightWarning, packaged_model
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.models.architectures.gemma3n import DEVIATIONS
from tests.models import tiny
from tests.models.seeded import N_VOCAB, write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.test_hostile_keys import MODELS
from tests.models.tiny import Tiny, write_model


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Tensors of f32 that files get beside their model's: their lengths by name."""
    added: dict[str, int] = {}
    own = tiny.weights

    def weights(m: Tiny) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        return own(m) | {name: np.ones(n, np.float32) for name, n in added.items()}

    monkeypatch.setattr(tiny, "weights", weights)
    return added


def warned_of(path: Path) -> str:
    """What the one warning says, without the file's name and what it means."""
    with pytest.warns(WeightWarning) as caught:
        load_model(GGUFFile.open(path))
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith("m.gguf: no part of the model uses ")
    assert message.endswith(": results may differ from those that the file was made for")
    return message[34 : message.rindex(": ")]


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "blk.0.ffn_gate.bias"),  # beside experts
        ("llama", "blk.0.ffn_latent_up.weight"),
        ("llama", "blk.0.attn_q_norm.weight"),
        ("qwen2", "blk.0.attn_q_norm.weight"),
        ("qwen3", "blk.0.attn_sub_norm.weight"),
        ("gemma3", "pos_embd.weight"),
        ("lfm2", "blk.0.attn_q.weight"),  # in a layer that is a convolution
    ],
)
def test_a_tensor_that_is_not_used_is_named(
    more: dict[str, int], tmp_path: Path, architecture: str, name: str
) -> None:
    more[name] = 8
    assert warned_of(write_model(tmp_path / "m.gguf", MODELS[architecture])) == f'"{name}"'


def test_many_are_cut_short_and_strange_names_are_quoted(
    more: dict[str, int], tmp_path: Path
) -> None:
    more |= {"a\n\x1b": 1} | {f"x{i}": 1 for i in range(7)}
    named = r'"a\n\u001b", "x0", "x1", "x2", "x3" and 3 more'
    assert warned_of(write_model(tmp_path / "m.gguf", Tiny())) == named


@pytest.mark.parametrize("architecture", MODELS)
def test_scales_of_what_is_not_quantised_here(
    more: dict[str, int], tmp_path: Path, architecture: str
) -> None:
    """Those of inputs, of all architectures; of the feed-forward, where llama.cpp has no use."""
    more |= {"output.input_scale": 1, "blk.1.attn_q.input_scale": 1}
    model = MODELS[architecture]
    if model.n_expert:
        more["blk.0.ffn_up_exps.input_scale"] = model.n_expert
    else:
        more |= {"blk.0.ffn_up.input_scale": 1, "blk.0.ffn_up.scale": 1}
    file = GGUFFile.open(write_model(tmp_path / "m.gguf", replace(model, n_layer=2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_model(file).weights.unused()


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("ernie4_5", {"blk.{i}.attn_output.bias": (64,)}),
        ("pangu-embedded", {"rope_freqs.weight": (8,)}),
        ("refact", {"blk.{i}.ffn_up.bias": (88,), "rope_freqs.weight": (8,)}),
        ("dream", {"output.bias": (N_VOCAB,)}),
        ("kimi-linear", {"blk.0.attn_q.bias": (64,)}),
    ],
)
def test_what_llama_cpp_loads_and_leaves_unused_is_no_news(
    tmp_path: Path, name: str, extra: dict[str, tuple[int, ...]]
) -> None:
    path = write_seeded(tmp_path, name, replace(SPECS[name], extra={**SPECS[name].extra, **extra}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unused = load_model(GGUFFile.open(path)).weights.unused()
    assert {tensor.format(i=0) for tensor in extra} <= set(unused)


def test_layers_beyond_the_block_count(tmp_path: Path) -> None:
    """They are named, and the model is that of the layers before them."""
    path = write_model(tmp_path / "m.gguf", Tiny(), llama__block_count=1)
    n_left = sum(name.startswith("blk.1.") for name in tiny.weights(Tiny())) - 5
    named = warned_of(path)
    assert re.fullmatch(rf'("blk\.1\.\w+\.weight"(, )?){{5}} and {n_left} more', named)
    with (
        pytest.warns(WeightWarning),
        Llama(path, backend="reference", flash_attn=False, type_k="f32", type_v="f32") as llm,
    ):
        logits = llm.logits([1, 5, 6])
    wanted = tiny.forward(Tiny(n_layer=1), [1, 5, 6])
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-3)


def test_who_opens_the_file_is_told(more: dict[str, int], tmp_path: Path) -> None:
    more["blk.0.ffn_gate.bias"] = 96
    path = write_model(tmp_path / "m.gguf", MODELS["llama"])
    with pytest.warns(WeightWarning) as caught:
        Llama(path, backend="null").close()
    assert [warning.filename for warning in caught] == [__file__]


def test_the_packaged_model_has_none() -> None:
    assert load_model(GGUFFile.open(packaged_model())).weights.unused() == []


@pytest.mark.parametrize(
    ("key", "value", "ignored"),
    [
        ("residual_scale", 0.25, True),
        ("residual_scale", 1.0, False),
        ("attention.sliding_window", 7, True),
        ("attention.sliding_window", 0, False),
        ("final_logit_softcapping", 20.0, True),
        ("final_logit_softcapping", 30.0, False),  # llama.cpp writes it into every file
        ("rope.scaling.alpha", 2.0, True),
        ("rope.dimension_sections", [8, 4, 4, 0], True),
        ("rope.dimension_sections", [0, 0, 0, 0], False),
        ("rope.freq_base_swa", 500.0, True),
        ("rope.freq_base_swa", 10_000.0, False),
        ("attention.key_length_swa", 8, True),
        ("attention.max_alibi_bias", 8.0, True),
        ("attention.chunk_size", 8192, True),
        ("attention.indexer.top_k", 2048, True),
        ("attention.recurrent_layers", [False, True], True),
        ("swiglu_clamp_exp", 7.0, True),
        ("leading_dense_block_count", 1, True),
        ("num_loops", 2, True),
        ("num_loops", 1, False),
        ("kda.gate_lower_bound", float("-inf"), False),
        ("a_key_of_the_future", 3, False),
    ],
)
def test_a_key_that_changes_the_meaning_and_is_not_read(
    tmp_path: Path, key: str, value: object, ignored: bool
) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), **{f"llama.{key}": value})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_model(GGUFFile.open(path))
    told = [f'm.gguf: the architecture does not read "llama.{key}" = {value}: results may differ']
    assert [str(w.message)[: len(told[0])] for w in caught] == told * ignored
    assert {w.filename for w in caught} <= {__file__}
    assert model.hparams.keys.unread() == [f"llama.{key}"]


def test_texts_of_keys_are_told_on_one_line(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), llama__hidden_activation="a\nb\x1b[31m")
    with pytest.warns(WeightWarning, match=r'hidden_activation" = "a\\nb\\u001b\[31m"') as caught:
        load_model(GGUFFile.open(path))
    assert "\n" not in str(caught[0].message)


def test_a_number_beyond_f32_is_told(tmp_path: Path) -> None:
    spec = SPECS["bloom"]
    keys = {**spec.keys, "attention.max_alibi_bias": 1e300}
    types = {**spec.types, "attention.max_alibi_bias": "f64"}
    path = write_seeded(tmp_path, "bloom", replace(spec, keys=keys, types=types))
    with pytest.warns(WeightWarning, match=r"max_alibi_bias. = 1e\+300") as caught:
        load_model(GGUFFile.open(path))
    assert {w.category for w in caught} == {WeightWarning}


@pytest.mark.parametrize(
    ("name", "key", "own", "other"),
    [
        ("bloom", "attention.max_alibi_bias", 8.0, 4.0),
        ("llama4", "attention.temperature_scale", 0.1, 0.2),
        ("llama4", "attention.chunk_size", 8192, 4096),
        ("deepseek", "expert_weights_norm", False, True),
        ("cohere2", "rope.freq_base_swa", 10_000.0, 1000.0),  # as llama.cpp: that of the others
        ("gemma3n", "attention.shared_kv_layers", 2, 3),
        ("gemma3n", "activation_sparsity_scale", [DEVIATIONS] * 10 + [0.0] * 12, [0.0] * 22),
    ],
)
def test_a_key_of_which_the_architecture_has_a_value_of_its_own(
    tmp_path: Path, name: str, key: str, own: object, other: object
) -> None:
    """It is told where it says another one."""
    for value, told in ((own, 0), (other, 1)):
        keys = {**SPECS[name].keys, key: value}
        path = write_seeded(tmp_path, "m", replace(SPECS[name], keys=keys))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_model(GGUFFile.open(path))
        assert [key in str(w.message) for w in caught] == [True] * told


# Keys of specifications that no part of the model reads, and why. llama.cpp must have some.
UNREAD: dict[str, tuple[str, ...]] = {
    # The indexer is left unused: longer contexts, where it would choose, are refused.
    r"attention\.indexer\.(head_count|key_length)": (
        *("deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4-indexer", "minimax-m3"),
        "qwen4exp",
    ),
    r"attention\.indexer\.types": ("dots3note", "hy_v4-indexer"),
    r"attention\.indexer\.kpool": ("glm5-next",),
    r"attention\.indexer\.local_blocks": ("minimax-m3",),
    # Their shared experts are one block, whose size is a key of its own.
    r"expert_shared_count": ("bailingmoe3", "exaone-moe", "hy_v3"),
    # There are no tensors of such a part: q is a full matrix, attention has no gate.
    r"attention\.q_lora_rank": ("kimi-k3-plain", "kimi-linear", "kimi-linear-fused"),
    r"attention\.gate_lora_rank": ("arwkv7-plain",),
    r"n_deepstack_layers": ("qwen3vl",),  # of images
    r"dense_(2_feat_in|3_feat_out)": ("gemma-embedding",),  # E; the other two sizes are read
    r"ssm\.group_count": ("plamo2",),  # which llama.cpp takes at 0 only
}
# Every specification has both: they are in BASE.
EITHER_EPSILON = r"attention\.layer_norm_(rms_)?epsilon"


def test_models_read_what_changes_their_meaning(tmp_path: Path) -> None:
    """And all that their specifications say: a key that is not read tests nothing."""
    excused = set()
    for name, spec in SPECS.items():
        keys = load_model(GGUFFile.open(write_seeded(tmp_path, name, spec))).hparams.keys
        assert keys.ignored() == [], name
        for key in (full.removeprefix(f"{spec.architecture}.") for full in keys.unread()):
            if re.fullmatch(EITHER_EPSILON, key):
                continue
            why = [pattern for pattern in UNREAD if re.fullmatch(pattern, key)]
            assert why and name in UNREAD[why[0]], f"{name}: nothing reads the key {key}"
            excused.add((why[0], name))
    assert excused == {(pattern, name) for pattern, names in UNREAD.items() for name in names}
