"""Draft models: two models that decode together, and what cannot draft."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import DraftModel, Llama, PromptLookup, packaged_model
from ggmlpy.draft import Asked
from ggmlpy.draft.model import ModelDrafter
from ggmlpy.engine.generation import Piece
from ggmlpy.errors import ArgumentError, MissingFile, Unsupported
from tests.draft.answers import NO_END, PROMPT, answers
from tests.models.seeded import write_seeded
from tests.models.seeded_specs.classic import CLASSIC_SPECS
from tests.models.tiny import Tiny, write_model


def test_a_model_that_drafts_for_itself_is_always_right(plain: Llama) -> None:
    """Also for several sequences at once, whose contexts it follows from answer to answer."""
    prompts = [plain.tokenize(text) for text in (PROMPT, "Tim went to", "The cat said")]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 30}
    expected = [answers(plain, [prompt], **options)[0] for prompt in prompts]
    draft = DraftModel(packaged_model(), p_min=0)
    with Llama(packaged_model(), n_ctx=384, n_seq_max=3, draft_model=draft) as llm:
        assert answers(llm, prompts, **options) == expected
        assert answers(llm, prompts[::-1], **options) == expected[::-1]
        timings = llm.timings
        assert timings.n_accepted == timings.n_drafted > 100
        assert timings.acceptance_rate == 1
        assert "accepted (100%)" in str(timings)
        assert f"draft         {packaged_model().name}, up to 16" in llm.describe()


@pytest.mark.parametrize("kv_layout", ["unified", "paged"])
def test_a_draft_model_without_room(kv_layout: str) -> None:
    """Sequences that share cells share none in its context, where they are too many."""
    beginning = [1, *random.Random(1).choices(range(300, 500), k=60)]
    prompts = [[*beginning, 400 + i] for i in range(4)]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "logit_bias": NO_END}
    sizes: dict[str, Any] = {"n_ctx": 160, "n_seq_max": 4, "kv_layout": kv_layout, "n_threads": 1}
    with Llama(packaged_model(), **sizes) as llm:
        expected = answers(llm, prompts, **options)
        with Llama(packaged_model(), draft_model=llm, **sizes) as drafted:
            assert answers(drafted, prompts, **options) == expected
            assert answers(llm, prompts, **options) == expected  # its own context is untouched


@pytest.mark.parametrize("kv_layout", ["split", "unified"])
def test_a_short_draft_model(tmp_path: Path, tiny_path: Path, kv_layout: str) -> None:
    """Of as many positions as it has embeddings: sequences beyond them get no drafts."""
    gpt2 = CLASSIC_SPECS["gpt2"]
    short = replace(gpt2, n_vocab=Tiny().n_vocab, keys={**gpt2.keys, "context_length": 16})
    draft = DraftModel(write_seeded(tmp_path, "short", short), p_min=0)
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "logit_bias": NO_END}
    sizes: dict[str, Any] = {"n_ctx": 128, "n_seq_max": 2, "kv_layout": kv_layout, "n_threads": 1}
    with Llama(tiny_path, **sizes) as llm:
        expected = answers(llm, [[5, 6, 7]], **options)
    lengths: list[tuple[int, int]] = []

    def noted(drafter: ModelDrafter, asked: Sequence[Asked]) -> list[list[int]]:
        drafts = DRAFT(drafter, asked)
        lengths.extend((len(each.tokens), len(d)) for each, d in zip(asked, drafts, strict=True))
        return drafts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelDrafter, "draft", noted)
        with Llama(tiny_path, draft_model=draft, **sizes) as llm:
            assert answers(llm, [[5, 6, 7]], **options) == expected
    assert {n > 0 for at, n in lengths if at <= 16} == {True}
    assert max(at + n for at, n in lengths if at <= 16) <= 17
    assert {n for at, n in lengths if at > 16} == {0}


DRAFT = ModelDrafter.draft


# --- what cannot be ------------------------------------------------------------------------------


def test_models_that_cannot_go_back(tmp_path: Path, tiny_path: Path) -> None:
    lfm2 = Tiny("lfm2", n_layer=3, qk_norm=True, convolutions=(0, 2))
    path = write_model(tmp_path / "lfm2.gguf", lfm2)
    with pytest.raises(Unsupported, match="recurrent layers, whose states cannot go back"):
        Llama(path, draft_model=PromptLookup())
    with pytest.raises(Unsupported, match=r"lfm2.gguf cannot be a draft model: .* recurrent"):
        Llama(tiny_path, draft_model=path)


def test_another_vocabulary(tmp_path: Path, tiny_path: Path) -> None:
    with pytest.raises(
        Unsupported, match=r"stories.gguf cannot be the draft model: .* 2048 tokens"
    ):
        Llama(tiny_path, draft_model=packaged_model())
    tokens = [f"<{i}>" for i in range(Tiny().n_vocab)]
    path = write_model(tmp_path / "other.gguf", Tiny(), tokenizer__ggml__tokens=tokens)
    with pytest.raises(Unsupported, match=r"other.gguf .* has '<5>' as token 5, the model has"):
        Llama(tiny_path, draft_model=DraftModel(path))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (5, "draft_model returned an int: it must return a list or an array of tokens"),
        ("ab", "draft_model returned a str: it must return a list"),
        ([1.5], "draft_model returned a float as a token: it must be a whole number"),
        ([4096], r"draft_model returned token 4096: must be in 0 .. 2047"),
        (np.array([-1]), r"draft_model returned token -1"),
        (np.array(5), r"draft_model returned a numpy array \(int64, shape \(\)\): it must return"),
    ],
)
def test_functions_that_return_no_tokens(returned: Any, message: str) -> None:
    with (
        Llama(packaged_model(), n_ctx=64, draft_model=lambda tokens: returned) as llm,
        pytest.raises(ArgumentError, match=message),
    ):
        llm("Once", max_tokens=4)


def test_an_error_ends_the_request_that_it_is_of() -> None:
    def fails(tokens: NDArray[np.intc]) -> list[int]:
        if tokens[0] == 9:
            raise RuntimeError("no draft")
        return [7]

    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "logit_bias": NO_END}
    with Llama(packaged_model(), n_ctx=256, n_seq_max=2, draft_model=fails) as llm:
        ids = [llm.engine.add(llm.request([first, 400], **options)) for first in (8, 9, 10, 9)]
        found: dict[int, list[Any]] = {id: [] for id in ids}
        while llm.engine.has_work:
            for output in llm.engine.step():
                found[output.id].append(output.piece)
    for id, first in zip(ids, (8, 9, 10, 9), strict=True):
        if first == 9:
            assert isinstance(found[id][-1], RuntimeError)
        else:
            assert [type(piece) for piece in found[id]] == [Piece] * 8


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (5, "Llama: draft_model is an int: it must be"),
        (PromptLookup, "draft_model is the class PromptLookup: it must be"),
        (DraftModel(7), "DraftModel: model is an int: it must be a model file or a Llama"),
    ],
)
def test_what_is_no_draft_model(draft: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Llama(packaged_model(), draft_model=draft)


def test_arguments_of_draft_models() -> None:
    for name, value in {"n_max": 0, "n_min": -1, "p_min": 1.5, "n_gpu_layers": "all"}.items():
        with pytest.raises(ArgumentError, match=f"{name} is "):
            DraftModel("small.gguf", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(MissingFile, match=r"small.gguf: there is no such file"):
        Llama(packaged_model(), draft_model="small.gguf")
