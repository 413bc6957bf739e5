"""LoRA adapters of requests that run together: the bits that each has alone, in every layout."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.backends import get_backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.errors import ArgumentError, BadBatch, GgmlpyError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.llama_state import LlamaState
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.runtime.context import Context
from tests.adapters import plain, write_adapter, write_merged
from tests.engine.lora import N_SEQ, context, shared_context, write_files
from tests.gguf_builder import build_gguf
from tests.models.checks import nmse
from tests.models.tiny import Tiny, write_model

RNG = np.random.default_rng(5)
TEXTS = [RNG.integers(3, 280, int(n)).tolist() for n in (20, 1, 33, 9)]
Scales = dict[int, float]  # of adapters by their number
Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("lora"))


def run_all(
    run: Context, adapters: Sequence[LoraAdapter], scales: dict[int, Scales], n: int
) -> dict[int, Logits]:
    """The logits of all tokens of some texts, each with its adapters, `n` tokens at a time."""
    run.clear()
    for seq, own in scales.items():
        run.set_lora({adapters[i]: scale for i, scale in own.items()}, seq=seq)
    parts: dict[int, list[Logits]] = {seq: [] for seq in scales}
    while due := [seq for seq in scales if run.n_past(seq) < len(TEXTS[seq])]:
        batch = Batch()
        lengths: list[int] = []
        for seq in due:
            start = run.n_past(seq)
            batch.add_sequence(seq, TEXTS[seq][start : start + n], start, all_outputs=True)
            lengths.append(len(batch) - sum(lengths))
        for seq, rows in zip(
            due, np.split(run.decode_batch(batch), np.cumsum(lengths)), strict=False
        ):
            parts[seq].append(rows.copy())
    return {seq: np.concatenate(rows) for seq, rows in parts.items()}


SCALES: dict[int, Scales] = {0: {0: 1.0, 2: 0.5}, 1: {}, 2: {1: -0.7}, 3: {2: 1.0, 0: 0.25}}


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, Logits]:
    """Of each text, as it is in a context of its own."""
    run, adapters = context(folder)
    return {seq: run_all(run, adapters, {seq: scales}, 64)[seq] for seq, scales in SCALES.items()}


def on_mock(folder: Path, **options: Any) -> tuple[Context, list[LoraAdapter]]:
    """Half of the layers, and the output, on a device whose memory numpy cannot see."""
    cpu = get_backend("cpu", 2)
    return context(folder, [MockBackend(seed=3, inner=cpu), cpu], n_gpu_layers=2, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [1, 7, 64])
def test_logits_among_others_are_those_alone(
    folder: Path, alone: dict[int, Logits], layout: str, n: int
) -> None:
    run, adapters = context(folder, kv_layout=layout, n_ubatch=48)
    got = run_all(run, adapters, SCALES, n)
    for seq, want in alone.items():
        np.testing.assert_array_equal(got[seq], want, f"sequence {seq}")


@pytest.mark.parametrize(
    "options", [{"passes": "none"}, {"n_ubatch": 5}, {"type_k": F32}, {"flash_attn": False}]
)
def test_the_same_with_other_options(folder: Path, options: dict[str, Any]) -> None:
    run, adapters = context(folder, **options)
    rest = {} if options.get("passes") or "n_ubatch" in options else options
    single, own = context(folder, **rest)
    got = run_all(run, adapters, SCALES, 7)
    for seq, scales in SCALES.items():
        want = run_all(single, own, {seq: scales}, 64)[seq]
        np.testing.assert_array_equal(got[seq], want, f"sequence {seq}")


def test_on_a_device_whose_memory_numpy_cannot_see(folder: Path, alone: dict[int, Logits]) -> None:
    run, adapters = on_mock(folder)
    got = run_all(run, adapters, SCALES, 7)
    for seq, want in alone.items():
        np.testing.assert_array_equal(got[seq], want, f"sequence {seq}")


def test_adapters_change_logits_and_none_does_not(folder: Path, alone: dict[int, Logits]) -> None:
    plain = Context.open(folder / "tiny.gguf", n_ctx=64, n_threads=2)
    for seq, scales in SCALES.items():
        plain.clear()
        same = np.array_equal(plain.decode(TEXTS[seq], all_logits=True), alone[seq])
        assert same == (not scales)


SOME = st.dictionaries(st.integers(0, 2), st.sampled_from([1.0, -0.5, 0.0]), max_size=3)


@settings(max_examples=25)
@given(scales=st.dictionaries(st.integers(0, 3), SOME, min_size=1), n=st.integers(1, 40))
def test_any_adapters_of_any_sequences(folder: Path, scales: dict[int, Scales], n: int) -> None:
    run, adapters = shared_context(folder, "many")
    single, own = shared_context(folder, "single")
    got = run_all(run, adapters, scales, n)
    for seq, wanted in scales.items():
        want = run_all(single, own, {seq: wanted}, 64)[seq]
        np.testing.assert_array_equal(got[seq], want, f"sequence {seq}")


def test_a_scale_is_an_input_and_decoding_goes_on_in_one_plan(folder: Path) -> None:
    run, adapters = context(folder)
    for scale in (1.0, 0.5, 0.25):
        for seq in range(N_SEQ):
            run.seq_rm(seq)
            run.set_lora({adapters[seq % 2]: scale}, seq=seq)
        for position in range(5):
            step = Batch()
            for seq in range(N_SEQ):
                step.add(7 + position, position, (seq,), True)
            run.decode_batch(step)
            assert run._steady is not None
    assert run.n_plans_built == 1


def test_tokens_of_several_sequences_have_one_adapter(folder: Path) -> None:
    run, adapters = context(folder, kv_layout="unified")
    run.set_lora({adapters[0]: 1.0}, seq=0)
    batch = Batch()
    batch.add(5, 0, (0, 1), True)
    with pytest.raises(BadBatch, match=r"\[0, 1\], which have different LoRA adapters"):
        run.decode_batch(batch)
    run.set_lora({adapters[0]: 1.0}, seq=1)
    shared = run.decode_batch(batch).copy()
    run.clear()
    np.testing.assert_array_equal(shared, run.decode([5]))


@pytest.mark.parametrize("names", [r"blk\.0\.attn_q\.weight", r"output\.weight"])
def test_an_adapter_of_one_weight(folder: Path, tmp_path: Path, names: str) -> None:
    """Whose graph depends on the tokens that have it alone, or on the outputs alone."""
    path = write_adapter(tmp_path / "a.gguf", folder / "tiny.gguf", names=names).path
    run, _ = context(folder)
    adapters = [run.load_lora(path)]
    scales: dict[int, Scales] = {0: {0: 1.0}, 1: {}, 2: {0: 1.0}}
    got = run_all(run, adapters, scales, 7)
    for seq, own in scales.items():
        want = run_all(run, adapters, {seq: own}, 64)[seq]
        np.testing.assert_array_equal(got[seq], want, f"sequence {seq}")


def test_copies_of_one_adapter(folder: Path) -> None:
    """Of equal adapters none comes before the other, whatever runs beside a sequence."""
    run, adapters = context(folder)
    copies = [adapters[0], run.load_lora(folder / "0.gguf")]
    scales: dict[int, Scales] = {0: {0: 0.3, 1: 1.7}, 2: {0: 1.7, 1: 0.3}, 3: {1: 0.3}}
    got = run_all(run, copies, scales, 7)
    for seq, own in scales.items():
        want = run_all(run, copies, {seq: own}, 64)[seq]
        np.testing.assert_array_equal(got[seq], want, f"sequence {seq}")


def test_an_output_that_is_the_embedding(tmp_path: Path) -> None:
    """An adapter of the embeddings changes what is looked up; one of the output the logits."""
    tied = write_model(tmp_path / "tied.gguf", Tiny(tied=True))
    with GGUFFile.open(tied) as file:
        untied_tensors = {
            name: (info.type.name, info.ne[: info.n_dims], info.data.tobytes())
            for name, info in file.tensors.items()
        }
        untied_tensors["output.weight"] = untied_tensors["token_embd.weight"]
        keys = {key: plain(file.metadata[key]) for key in file.metadata}
    untied = build_gguf(tmp_path / "untied.gguf", keys, untied_tensors)
    for i, names in enumerate((r"token_embd\.weight", r"output\.weight")):
        adapter = write_adapter(tmp_path / f"{i}.gguf", untied, names=names, seed=i)
        merged = write_merged(tmp_path / f"merged-{i}.gguf", untied, [(adapter, 1.0)])
        run = Context.open(tied, n_ctx=64, type_k="f32", type_v="f32")
        run.set_lora({run.load_lora(adapter.path): 1.0}, seq=0)
        want = Context.open(merged, n_ctx=64, type_k="f32", type_v="f32").decode(TEXTS[0])
        assert nmse(run.decode(TEXTS[0]), want) < 1e-10


@pytest.mark.parametrize("types", [("f32", "f32"), ("f16", "f16"), ("bf16", "f32"), ("q8_0",) * 2])
def test_quantised_weights(folder: Path, tmp_path: Path, types: tuple[str, str]) -> None:
    """The products of the model and of the adapter have the errors of their types, as without."""
    path = folder / "tiny-q8_0.gguf"
    adapter = write_adapter(tmp_path / "a.gguf", path, rank=32, types=types, size=0.5)
    found = {}
    for backend in ("cpu", "reference"):
        run = Context.open(path, backend=backend, n_ctx=64)
        plain = run.decode(TEXTS[0]).copy()
        run.clear()
        run.set_lora({run.load_lora(adapter.path): 1.0}, seq=0)
        found[backend] = plain, run.decode(TEXTS[0]).copy()
    without = nmse(found["cpu"][0], found["reference"][0])
    assert nmse(found["cpu"][1], found["reference"][1]) < max(10 * without, 1e-4)
    assert nmse(found["cpu"][1], found["cpu"][0]) > 1e-2


# --- requests -------------------------------------------------------------------------------------


@pytest.fixture
def llm(folder: Path) -> Llama:
    llm = Llama(folder / "tiny.gguf", n_ctx_seq=128, n_seq_max=4, n_threads=2)
    for i in range(3):
        llm.load_lora(folder / f"{i}.gguf", 0.0)
    return llm


def answer(llm: Llama, prompt: list[int], lora: Any = None, n: int = 6) -> list[Any]:
    """Tokens of a greedy answer with their log-probabilities."""
    request = llm.request(
        prompt, max_tokens=n, temperature=0, logprobs=2, lora=lora, logit_bias={2: -1000.0}
    )
    return _answers(llm, [request])[0]


def _answers(llm: Llama, requests: Sequence[Any]) -> list[list[Any]]:
    ids = [llm.engine.add(request) for request in requests]
    found: dict[int, list[Any]] = {id: [] for id in ids}
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert not isinstance(output.piece, Exception), output.piece
            found[output.id] += [(p.token, p.logprob, p.top) for p in output.piece.logprobs]
    return [found[id] for id in ids]


def test_requests_together_get_what_they_get_alone(llm: Llama) -> None:
    prompt = TEXTS[2]
    wanted: list[Any] = [{}, {0: 1.0}, {1: 1.0}, {0: 0.5, 1: 0.5}, {1: 0.5, 0: 0.5}, {2: 1.0}]
    alone = []
    for lora in wanted:
        llm.reset()
        alone.append(answer(llm, prompt, lora))
    assert alone[3] == alone[4]
    assert len({json.dumps([token for token, *_ in each]) for each in alone}) > 2
    llm.reset()
    requests = [
        llm.request(
            prompt, max_tokens=6, temperature=0, logprobs=2, lora=lora, logit_bias={2: -1000.0}
        )
        for lora in wanted
    ]
    assert _answers(llm, requests) == alone


def test_a_prefix_is_reused_with_the_same_adapters_only(llm: Llama) -> None:
    prompt = TEXTS[2]
    want = answer(llm, prompt, {0: 1.0})
    assert llm.timings.n_reused == 0
    for lora in ({}, {0: 0.5}, {1: 1.0}, {0: 1.0, 1: 1.0}):
        answer(llm, prompt, lora)
        assert llm.timings.n_reused == 0
    assert answer(llm, prompt, [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.0}]) == want
    assert llm.timings.n_reused == len(prompt) - 1


def test_what_is_evicted_is_restored_for_the_same_adapters(folder: Path) -> None:
    llm = Llama(folder / "tiny.gguf", n_ctx_seq=128, n_seq_max=1, n_threads=2)
    llm.load_lora(folder / "0.gguf", 0.0)
    prompt = TEXTS[2]
    want = [answer(llm, prompt, {0: 1.0}), answer(llm, prompt, {})]
    assert want[0] != want[1]
    assert llm.engine.slots.cache.n_hits == 0
    assert [answer(llm, prompt, {0: 1.0}), answer(llm, prompt, {})] == want
    assert llm.engine.slots.cache.n_hits == 2


def test_states_belong_to_their_adapters(llm: Llama, folder: Path) -> None:
    prompt = TEXTS[2]
    want = answer(llm, prompt, {0: 1.0})
    (seq,) = llm.held_tokens
    saved = LlamaState.from_bytes(llm.save_state(seq=seq).to_bytes())
    plain = Llama(folder / "tiny.gguf", n_ctx_seq=128, n_threads=2)
    plain.load_state(saved)
    plain.create_completion(prompt, max_tokens=1, temperature=0)
    assert plain.timings.n_reused == 0
    adapter = plain.load_lora(folder / "0.gguf", 0.0)
    plain.load_state(saved)
    assert answer(plain, prompt, {adapter: 1.0}) == want
    assert plain.timings.n_reused == len(prompt) - 1


def test_scores_logits_and_embeddings_have_the_default_adapters(folder: Path) -> None:
    texts = TEXTS[2], TEXTS[0]
    with Llama(folder / "tiny.gguf", n_ctx_seq=64, n_threads=2) as plain:
        without = plain.logits(texts[0]), plain.embed([texts[0]])[0], plain.score([texts[0]])
    files: list[Any] = [(folder / "0.gguf", 0.5), folder / "1.gguf"]
    with Llama(folder / "tiny.gguf", n_ctx_seq=64, n_threads=2, lora_adapters=files) as llm:
        logits = llm.logits(texts[0])
        assert not np.array_equal(logits, without[0])
        assert not np.array_equal(llm.embed([texts[0]])[0], without[1])
        log_p = logits[:-1].astype(np.float64)
        log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        want = log_p[np.arange(len(texts[0]) - 1), texts[0][1:]]
        np.testing.assert_allclose(llm.score([texts[0]])[0].token_logprobs, want, rtol=1e-6)
        for adapter in llm.lora_adapters.values():
            adapter.scale = 0.0
        np.testing.assert_array_equal(llm.logits(texts[0]), without[0])
        np.testing.assert_array_equal(llm.embed([texts[0]])[0], without[1])
        assert llm.score([texts[0]]) == without[2]


@pytest.mark.parametrize("context_shift", [False, True])
def test_drafts_and_full_contexts(folder: Path, context_shift: bool) -> None:
    """Drafts are checked with the adapters of their requests, which stay when a context is cut."""
    found = []
    for draft_model, n_seq_max in ((None, 1), (lambda tokens: list(tokens[-3:]), 3)):
        with Llama(
            folder / "tiny.gguf", n_ctx_seq=48, n_seq_max=n_seq_max, draft_model=draft_model
        ) as llm:
            adapters = [llm.load_lora(folder / f"{i}.gguf", 0.0) for i in range(2)]
            requests = [
                llm.request(
                    TEXTS[0] * 2, max_tokens=16, temperature=0, logprobs=1, lora=lora,
                    logit_bias={2: -1000.0}, context_shift=context_shift,
                )
                for lora in ({}, {adapters[0]: 1.0}, {adapters[1]: 1.0})
            ]  # fmt: skip
            found.append(_answers(llm, requests))
            n_drafted = llm.timings.n_drafted
    assert n_drafted > 0
    assert found[0] == found[1]
    assert len(found[0][0]) == (16 if context_shift else 9)
    assert found[0][0] != found[0][1] != found[0][2]


def test_a_running_request_keeps_its_adapters(folder: Path) -> None:
    """Whatever is loaded, or gets another scale, while it runs."""
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "logit_bias": {2: -1000.0}}
    with Llama(folder / "tiny.gguf", n_ctx_seq=128, n_seq_max=2, n_threads=2) as llm:
        want = llm(TEXTS[2], **options)["choices"][0]["text"]
        stream = llm.create_completion(TEXTS[2], stream=True, **options)
        parts = [next(stream)]
        adapter = llm.load_lora(folder / "0.gguf")
        changed = llm(TEXTS[2], **options)["choices"][0]["text"]
        parts += stream
        assert "".join(part["choices"][0]["text"] for part in parts) == want != changed
        adapter.scale = 0.0
        assert llm(TEXTS[2], **options)["choices"][0]["text"] == want
        adapter.scale = "1"  # type: ignore[assignment]
        with pytest.raises(ArgumentError, match=r"the scale of 0\.gguf is a str"):
            llm(TEXTS[2])


def test_unloading(llm: Llama, folder: Path) -> None:
    first = llm.lora_adapters[0]
    leaf = weakref.ref(first.leaves[0][1])
    llm.embed([TEXTS[0]])
    want = answer(llm, TEXTS[2], {first: 1.0})
    stream = llm.create_completion(TEXTS[2], lora={first: 1.0}, stream=True, max_tokens=8)
    next(stream)
    with pytest.raises(GgmlpyError, match=r"0\.gguf: 1 running requests have this adapter"):
        llm.unload_lora(first)
    stream.close()
    llm.unload_lora(first)
    assert repr(first).endswith(".gguf', unloaded)")
    assert list(llm.lora_adapters) == [1, 2]
    with pytest.raises(ArgumentError, match=r"no adapter LoraAdapter\('0\.gguf'.* loaded are 1: 1"):
        llm.request(TEXTS[2], lora={first: 1.0})
    with pytest.raises(ArgumentError, match="no adapter"):
        llm.unload_lora(first)
    gc.collect()
    assert leaf() is None
    held = [s.lora for s in llm.engine.context.plans.plans]
    assert all(part.adapter is not first for lora in held for part in lora)
    again = llm.load_lora(folder / "0.gguf", 0.0)
    assert answer(llm, TEXTS[2], {again: 1.0}) == want
    assert list(llm.lora_adapters) == [1, 2, 3]
    llm.close()
    with pytest.raises(GgmlpyError, match="closed"):
        llm.load_lora(folder / "0.gguf")


@pytest.mark.parametrize(
    ("lora", "match"),
    [
        ({7: 1.0}, "no adapter 7 is loaded; loaded are 0: 0.gguf"),
        ({True: 1.0}, "no adapter True"),
        ([0], r"lora is \[0\]: it must be a dict"),
        ("0", "lora is '0': it must be a dict"),
        ([{"id": 0}], "it must be a dict"),
        ({0: float("inf")}, "the scale of 0.gguf is inf: it must be finite"),
        ({0: "1"}, "the scale of 0.gguf is a str: it must be a number"),
        ([{"id": 0, "scale": 1}] * 2, "0.gguf is named twice"),
    ],
)
def test_bad_adapters_of_requests(llm: Llama, lora: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        llm.create_completion([5, 6], lora=lora)
