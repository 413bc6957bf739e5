"""Answers under a grammar: valid, the same alone and beside others, with all other options."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Grammar, Llama, Request, packaged_model
from ggmlpy.engine.generation import Piece
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import ArgumentError, GrammarError, MissingPackage, SamplingError
from ggmlpy.grammar import library

pytest.importorskip("llguidance")

COMPACT = {"x-guidance": {"whitespace_flexible": False}}
PERSON = {
    "type": "object",
    "properties": {
        "name_of_the_person": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name_of_the_person", "age", "pets"],
    "additionalProperties": False,
}
GRAMMARS: list[Grammar] = [
    Grammar.json_schema(PERSON),
    Grammar.json_schema({**PERSON, **COMPACT}),
    Grammar.choices([" yes", " no", " perhaps"]),
    Grammar.regex(r" [0-9]{3}-[a-zé日本]{4}(é|日)+x"),
    Grammar.gbnf('root ::= " a " ("cat" | "dog") (" and " root)? "."'),
    Grammar.lark('start: " " /[a-z]{3,9}/ " (" start " )" | " end"'),
    Grammar.json_object(),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(packaged_model(), n_ctx_seq=256, n_seq_max=4) as made:
        yield made


def choice(llm: Llama, grammar: Any, **options: Any) -> dict[str, Any]:
    given = {"max_tokens": 120, "seed": 1, **options}
    found: dict[str, Any] = llm("Once upon a time", grammar=grammar, **given)["choices"][0]
    return found


def run(llm: Llama, requests: Sequence[Request]) -> list[list[Piece]]:
    """The pieces of requests that run side by side."""
    ids = [llm.engine.add(request) for request in requests]
    pieces: dict[int, list[Piece]] = {id: [] for id in ids}
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert isinstance(output.piece, Piece), output.piece
            pieces[output.id].append(output.piece)
    return [pieces[id] for id in ids]


def tokens_of(pieces: list[Piece]) -> list[int]:
    return [piece.token for piece in pieces if piece.token is not None]


# --- what the text is ---


@pytest.mark.parametrize("temperature", [0, 0.8, 2.0])
def test_choices(llm: Llama, temperature: float) -> None:
    found = {choice(llm, GRAMMARS[2], temperature=temperature, seed=s)["text"] for s in range(6)}
    assert found <= {" yes", " no", " perhaps"}
    assert len(found) > 1 or temperature == 0


@pytest.mark.parametrize("seed", range(3))
def test_regular_expressions(llm: Llama, seed: int) -> None:
    """Characters of several bytes are several tokens of this vocabulary."""
    found = choice(llm, GRAMMARS[3], seed=seed, temperature=1.5)
    assert re.fullmatch(" [0-9]{3}-[a-zé日本]{4}(é|日)+x", found["text"])
    assert found["finish_reason"] == "stop"


def test_a_choice_that_begins_another(llm: Llama) -> None:
    grammar = Grammar.choices([" a", " ab", " abc"])
    drawn = [choice(llm, grammar, seed=s, temperature=3, min_p=0, top_p=1) for s in range(20)]
    found = {each["text"] for each in drawn}
    assert found <= {" a", " ab", " abc"} and len(found) > 1


@pytest.mark.parametrize("text", ["", "\x00\n\"\\'", "</s>", "日本é😀", " <|im_end|>"])
def test_any_text_can_be_a_choice(llm: Llama, text: str) -> None:
    found = choice(llm, Grammar.choices([text]))
    assert found["text"] == text and found["finish_reason"] == "stop"


def test_gbnf_as_text_and_lark_as_text(llm: Llama) -> None:
    assert choice(llm, 'root ::= " it"')["text"] == " it"
    assert choice(llm, '%llguidance {}\nstart: " it"')["text"] == " it"


def test_the_empty_text(llm: Llama) -> None:
    result = llm("Once", grammar='root ::= ""', max_tokens=5)
    assert result["choices"][0]["text"] == ""
    assert result["choices"][0]["finish_reason"] == "stop"
    assert result["usage"]["completion_tokens"] == 0


def test_max_tokens_cuts(llm: Llama) -> None:
    for n in range(1, 30, 4):
        result = llm("Once", response_format=json_schema(PERSON), max_tokens=n, seed=1)
        assert result["choices"][0]["finish_reason"] == "length"
        assert result["usage"]["completion_tokens"] == n


def test_stop_strings_cut_forced_text(llm: Llama) -> None:
    found = choice(llm, Grammar.choices([" name of the person"]), stop="of")
    assert found["text"] == " name " and found["finish_reason"] == "stop"


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


@pytest.mark.parametrize(
    "form",
    [
        json_schema(PERSON),
        {"type": "json_schema", "schema": PERSON},
        {"type": "json_object", "schema": PERSON},
    ],
)
def test_response_format(llm: Llama, form: dict[str, Any]) -> None:
    for result in (
        llm("Once", response_format=form, max_tokens=120, seed=2),
        *llm.generate(["Once", "A"], response_format=form, max_tokens=120, seed=2),
    ):
        assert json.loads(result["choices"][0]["text"]).keys() == PERSON["properties"].keys()  # type: ignore[attr-defined]
    messages = [{"role": "user", "content": "Who?"}]
    answer = llm.create_chat_completion(messages, response_format=form, max_tokens=120, seed=2)
    assert "age" in json.loads(answer["choices"][0]["message"]["content"])


def test_text_is_no_grammar(llm: Llama) -> None:
    with_form = llm("Once", response_format={"type": "text"}, seed=1)["choices"][0]["text"]
    assert with_form == llm("Once", seed=1)["choices"][0]["text"]


# --- beside others, and with other options ---


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"repeat_penalty": 1.4}])
def test_side_by_side_as_alone(llm: Llama, options: dict[str, Any]) -> None:
    """More requests than sequences, each with another grammar, some without."""
    requests = [
        llm.request("Lily said", grammar=grammar, max_tokens=50, seed=seed, **options)
        for seed in range(2)
        for grammar in [*GRAMMARS, None]
    ]
    alone = [run(llm, [request])[0] for request in requests]
    together = run(llm, requests)
    assert [tokens_of(pieces) for pieces in together] == [tokens_of(pieces) for pieces in alone]
    assert ["".join(p.text for p in each) for each in together] == [
        "".join(p.text for p in each) for each in alone
    ]


def test_preempted_requests_keep_their_place() -> None:
    with Llama(packaged_model(), n_ctx=200, n_seq_max=6, kv_unified=True) as small:
        requests = [
            small.request("Lily said", grammar=GRAMMARS[s % 2], max_tokens=90, seed=s)
            for s in range(6)
        ]
        together = [tokens_of(pieces) for pieces in run(small, requests)]
        assert small.timings.n_preempted
        assert together == [tokens_of(run(small, [request])[0]) for request in requests]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.kind)
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_forced_tokens_change_nothing(llm: Llama, grammar: Grammar, penalty: float) -> None:
    """With log-probabilities, or a callback, each token has a step of its own: the same ones."""
    seen: list[int] = []

    def looks(tokens: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(len(tokens))
        return logits

    options: dict[str, Any] = {"max_tokens": 60, "seed": 3, "repeat_penalty": penalty}
    pieces = run(llm, [llm.request("Lily", grammar=grammar, **options)])[0]
    scored = run(llm, [llm.request("Lily", grammar=grammar, logprobs=1, **options)])[0]
    called = run(llm, [llm.request("Lily", grammar=grammar, logits_processor=looks, **options)])[0]
    tokens = tokens_of(pieces)
    assert tokens_of(scored) == tokens_of(called) == tokens
    n_prompt = len(llm.tokenize("Lily"))
    assert seen[: len(tokens)] == [n_prompt + i for i in range(len(tokens))]
    logits = llm.logits(llm.tokenize("Lily") + tokens)
    for i, piece in enumerate(scored[: len(tokens)]):
        row = logits[n_prompt - 1 + i].astype(np.float64)
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        (logprob,) = piece.logprobs
        assert logprob.token == tokens[i]
        assert logprob.logprob == pytest.approx(expected[tokens[i]], abs=1e-5)


def test_forced_stretches_run_together(llm: Llama) -> None:
    text = " name of the person who sat on the chair in the garden"
    llm.reset()
    llm.engine.timings = Timings()
    request = llm.request("Once", grammar=Grammar.choices([text]), max_tokens=100)
    id, n_steps, pieces = llm.engine.add(request), 0, []
    while llm.engine.has_work:
        pieces += [out.piece for out in llm.engine.step() if out.id == id]
        n_steps += 1
    assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == text
    assert len(pieces) > 8
    assert n_steps <= 3
    assert llm.timings.n_forced >= len(pieces) - 2
    assert llm.timings.n_generated == len(pieces)
    assert llm.timings.n_prompt == len(llm.tokenize("Once"))


def test_streams_have_the_text(llm: Llama) -> None:
    options: dict[str, Any] = {"grammar": GRAMMARS[1], "max_tokens": 100, "seed": 4}
    whole = llm("Once", **options)["choices"][0]["text"]
    chunks = llm("Once", stream=True, **options)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


def test_biases_and_processors_cannot_leave_the_grammar(llm: Llama) -> None:
    (token,) = llm.tokenize(" the", add_bos=False)

    def only_one(tokens: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[:] = -5
        logits[token] = 100
        return logits

    grammar = Grammar.choices([" yes", " no"])
    for options in ({"logit_bias": {token: 100.0}}, {"logits_processor": only_one}):
        for temperature in (0, 1.0):
            assert choice(llm, grammar, temperature=temperature, **options)["text"] in (
                " yes",
                " no",
            )


def test_an_error_ends_one_request_only(llm: Llama) -> None:
    def nothing(tokens: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full_like(logits, -np.inf)

    bad = llm.request("Once", grammar=GRAMMARS[0], logits_processor=nothing)
    good = llm.request("Once", grammar=GRAMMARS[2], seed=1)
    ids = [llm.engine.add(bad), llm.engine.add(good)]
    outputs = []
    while llm.engine.has_work:
        outputs += llm.engine.step()
    assert isinstance([out.piece for out in outputs if out.id == ids[0]][-1], SamplingError)
    assert [out.piece for out in outputs if out.id == ids[1]][-1].finish_reason == "stop"  # type: ignore[union-attr]


def test_logits_on_a_device() -> None:
    """Of which a request without a grammar gets only the largest."""
    with Llama(packaged_model(), n_ctx=256, backend=["mock", "cpu"]) as device:
        found = choice(device, GRAMMARS[3], temperature=1.5)
        assert re.fullmatch(" [0-9]{3}-[a-zé日本]{4}(é|日)+x", found["text"])
        assert choice(device, GRAMMARS[2], temperature=0)["text"] in (" yes", " no", " perhaps")


# --- what is refused ---


@pytest.mark.parametrize(
    "grammar, message",
    [
        ("root ::= x", 'line 1, column 10: there is no rule "x"'),
        ("%llguidance {}\nstart: [", "the grammar is refused"),
        (Grammar.regex("(a"), "the regular expression is refused: .*unclosed group"),
        (Grammar.regex(r"(?=a)b"), "look-around"),
        ("root ::= <nothing>", 'names "<nothing>", which is not one token'),
        ("root ::= <[99999999]>", "the grammar"),
    ],
)
def test_refused_grammars(llm: Llama, grammar: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        llm("Once", grammar=grammar)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"grammar": 5}, "grammar is an int"),
        ({"response_format": "json"}, "response_format is 'json': it must be"),
        ({"response_format": {"type": "xml"}}, "it must be"),
        ({"response_format": {"type": "json_schema"}}, "has no schema"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "the JSON schema is an int"),
        ({"grammar": "root ::= [a]", "response_format": {"type": "json_object"}}, "both given"),
    ],
)
def test_wrong_options(llm: Llama, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        llm("Once", **options)


def test_choices_must_be_texts() -> None:
    for wrong in ("yes", [5], {"a"}, 5):
        with pytest.raises(ArgumentError):
            Grammar.choices(wrong)  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="empty"):
        Grammar.choices([])


def test_without_llguidance(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingPackage, match=r"pip install 'ggmlpy\[grammar\]'"):
        library.matcher_class()
    with pytest.raises(MissingPackage, match="llguidance"):
        llm("Once", grammar='root ::= "b"')
