"""llama-server's endpoints, beside what llama-server itself answers with the packaged model.

Its answers are recorded by tests/tools/record_llama_server.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggmlpy import packaged_model
from ggmlpy.server import Settings
from tests.adapters import write_adapter
from tests.server.conftest import N_SEQS, open_model, running, wait_for
from tests.tools.record_llama_server import (
    CASES,
    DRAWN_CASES,
    FIM,
    FIM_CASES,
    PROGRESS_CASES,
    P,
    answer_of,
)

RECORDED = json.loads(Path(__file__).with_name("llama_server.json").read_text())
# What differs from run to run, or says how a server does it.
_FREE = {
    "timings", "build_info", "model_path", "n_written", "n_read", "model_alias", "n_prompt_tokens",
    "id_task", "n_prompt_tokens_processed", "n_prompt_tokens_cache", "chat_template",
    "min_keep",  # 0 is llama.cpp's default, 1 is ours: both keep one
}  # fmt: skip
# Keys that llama-server has and we have not: of chats, or of what there is not here.
_OURS_LACKS = {
    "grammar_lazy", "grammar_triggers", "preserved_tokens", "chat_format",
    "reasoning_format", "reasoning_in_content", "generation_prompt", "speculative.types",
    "backend_sampling", "model_ftype", "media_marker", "ui_settings", "chat_template_caps",
    "cors_proxy_enabled", "n_prompt_tokens", "id_task", "n_prompt_tokens_processed",
    "n_prompt_tokens_cache", "params", "next_token",
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Those of a server as the recorded one, to all requests in the recorded order."""
    folder = str(tmp_path_factory.mktemp("slots"))
    settings = Settings(metrics=True, props=True, slot_save_path=folder)
    with (
        running(settings, lambda: open_model(n_seq_max=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        return [answer_of(client, *case) for case in CASES]


@pytest.mark.parametrize("i", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i][1]}")
def test_answers_are_llama_servers(answers: list[dict[str, Any]], i: int) -> None:
    ours, theirs = answers[i], RECORDED[i]
    assert ours["status"] == theirs["status"], ours
    if theirs["status"] == 200:
        check(ours, theirs, "", free={"prompt"} if CASES[i][1] == "/apply-template" else set())
        return
    mine, other = ours["body"]["error"], theirs["body"]["error"]
    if other["type"] == "exceed_context_size_error":  # of which OpenAI has the code alone
        assert mine["code"] == "context_length_exceeded"
    else:
        assert mine["type"] == other["type"]


@pytest.fixture(scope="module")
def filling() -> Iterator[httpx.Client]:
    """A server whose vocabulary has tokens for filling in."""
    with (
        running(open=lambda: open_model(n_seq_max=1, n_ctx_seq=4096, kv_overrides=FIM)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize("i", range(len(FIM_CASES)))
def test_filling_in_is_llama_servers(filling: httpx.Client, i: int) -> None:
    """Of long contexts the text is not compared: this model was trained with 512 tokens."""
    ours, theirs = answer_of(filling, *FIM_CASES[i])["body"], RECORDED[len(CASES) + i]["body"]
    for name in ("prompt", "tokens_evaluated", "tokens_predicted"):
        assert ours[name] == theirs[name]
    if theirs["tokens_evaluated"] < 512:
        assert ours["content"] == theirs["content"]


def test_a_suffix_is_what_the_answer_leads_to(filling: httpx.Client) -> None:
    more = {"max_tokens": 5, "temperature": 0}
    filled = filling.post("/v1/completions", json={"prompt": "The cat", "suffix": " home.", **more})
    parts = {"input_prefix": "The cat", "input_suffix": " home."}
    wanted = filling.post("/infill", json={**parts, **more}).json()
    text = filled.json()["choices"][0]["text"]
    # /infill has a file's name before it, as llama-server has.
    plain = filling.post("/v1/completions", json={"prompt": "The cat", **more}).json()
    assert text != plain["choices"][0]["text"]
    assert filled.json()["usage"]["prompt_tokens"] == wanted["tokens_evaluated"]
    refused = filling.post("/v1/completions", json={"prompt": [1, 2], "suffix": " home."})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "suffix"


def check(ours: Any, theirs: Any, at: str, free: set[str]) -> None:
    """Every field of llama-server is there, has the same type, and where it must the same value.

    `free`: names of fields whose values may differ, besides those of _FREE: the packaged model has
    no chat template, and the general ones differ.
    """
    names = set(at.split("/"))
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), at
        for key in theirs.keys() - (_OURS_LACKS - ours.keys()):
            assert key in ours, f"{at}/{key}"
            check(ours[key], theirs[key], f"{at}/{key}", free)
    elif isinstance(theirs, list):
        assert isinstance(ours, list), at
        assert len(ours) == len(theirs), f"{at}: {ours}, {theirs}"
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            check(mine, other, f"{at}/{i}", free)
    elif isinstance(theirs, float):
        # llama.cpp rounds what it multiplies by q8_0 weights, which unlikely tokens show.
        is_log = "logprob" in names
        near = pytest.approx(theirs, rel=0.02 if is_log else 1e-6, abs=0.05 if is_log else 1e-6)
        assert ours == near or names & (_FREE | free), f"{at}: {ours!r}, {theirs!r}"
    else:
        assert type(ours) is type(theirs), at
        assert ours == theirs or names & (_FREE | free), f"{at}: {ours!r}, {theirs!r}"


@pytest.fixture(scope="module")
def in_part() -> list[dict[str, Any]]:
    """Answers of a server of one slot that are compared in part."""
    with (
        running(open=lambda: open_model(n_seq_max=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        return [answer_of(client, *case) for case in PROGRESS_CASES + DRAWN_CASES]


@pytest.mark.parametrize("i", range(len(PROGRESS_CASES)))
def test_progress_of_prompts_is_llama_servers(in_part: list[dict[str, Any]], i: int) -> None:
    ours = in_part[i]["events"]
    theirs = RECORDED[len(CASES) + len(FIM_CASES) + i]["events"]

    def told(events: list[dict[str, Any]]) -> list[dict[str, int]]:
        found = [each["prompt_progress"] for each in events if "prompt_progress" in each]
        assert all(isinstance(each["time_ms"], int) for each in found)
        return [{**each, "time_ms": 0} for each in found]

    assert told(ours) == told(theirs)
    assert [each for each in ours if "prompt_progress" in each] == ours[: len(told(theirs))]
    assert all("timings" in each for each in ours)
    for name in ("cache_n", "predicted_n"):
        ends = [answer[-1]["timings"][name] for answer in (ours, theirs)]
        assert ends[0] == ends[1]


@pytest.mark.parametrize("i", range(len(DRAWN_CASES)))
def test_probabilities_of_draws_are_llama_servers(in_part: list[dict[str, Any]], i: int) -> None:
    """Which token is drawn is not compared."""
    n = len(PROGRESS_CASES) + i

    def shown(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[int, float]]:
        (token,) = answer["body"]["completion_probabilities"]
        return token, {each["id"]: each["prob"] for each in token["top_probs"]}

    ours, theirs = in_part[n], RECORDED[len(CASES) + len(FIM_CASES) + n]
    (mine, found), (other, want) = shown(ours), shown(theirs)
    assert mine.keys() == other.keys()
    assert found == pytest.approx(want, rel=0.02, abs=1e-3)
    assert mine["prob"] == pytest.approx(found.get(mine["id"], mine["prob"]))
    assert ours["body"]["generation_settings"]["post_sampling_probs"] is True


def test_a_request_gets_its_slot_which_others_can_save(tmp_path: Path) -> None:
    with (
        running(Settings(slot_save_path=str(tmp_path))) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for slot in (2, 1, N_SEQS + 3):
            body = {"prompt": f"{P}, slot {slot}", "n_predict": 2, "id_slot": slot}
            made = client.post("/completion", json=body).json()
            assert made["id_slot"] == slot % N_SEQS
            path = f"/slots/{slot % N_SEQS}?action=save"
            saved = client.post(path, json={"filename": "kept"}).json()
            assert saved["n_saved"] == made["tokens_cached"]
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "id_slot": 1}
        held = client.get("/slots").json()[1]["n_held_tokens"]
        client.post("/v1/chat/completions", json=chat)
        assert client.get("/slots").json()[1]["n_held_tokens"] != held


def test_a_stream_is_the_whole_in_pieces(client: httpx.Client) -> None:
    body = {"prompt": P, "n_predict": 12, "seed": 3, "stop": ["."], "return_tokens": True}
    whole = answer_of(client, "POST", "/completion", body)["body"]
    *parts, end = answer_of(client, "POST", "/completion", {**body, "stream": True})["events"]
    assert "".join(each["content"] for each in parts) == whole["content"]
    assert [token for each in parts for token in each["tokens"]] == whole["tokens"]
    assert [each["stop"] for each in parts] == [False] * len(parts)
    assert end["content"] == ""
    same = whole.keys() - {"timings", "content", "tokens", "generation_settings", "id_slot"}
    assert {name: end[name] for name in same} == {name: whole[name] for name in same}


def test_the_end_of_an_answer_has_its_reason(client: httpx.Client) -> None:
    def end(**body: Any) -> dict[str, Any]:
        found: dict[str, Any] = client.post("/completion", json={"prompt": P, **body}).json()
        return found

    nothing = end(n_predict=0)
    assert (nothing["content"], nothing["tokens_predicted"], nothing["stop_type"]) == (
        "", 0, "limit",
    )  # fmt: skip
    assert not nothing["truncated"]
    stopped = end(n_predict=5, logit_bias=[[1, 100.0]])  # EOS
    assert (stopped["stop_type"], stopped["tokens_predicted"]) == ("eos", 0)
    full = end(ignore_eos=True)  # until the context of 512 is full: the last token is not in it
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["tokens_evaluated"] + full["tokens_predicted"] == 513
    late = end(n_predict=300, t_max_predict_ms=0.001, temperature=0, ignore_eos=True)
    free = end(n_predict=300, temperature=0, ignore_eos=True)
    assert free["has_new_line"], "this shows nothing without a line"
    assert (late["stop_type"], late["has_new_line"]) == ("limit", True)
    assert late["tokens_predicted"] < free["tokens_predicted"]
    assert late["content"] == free["content"][: free["content"].index("\n") + 1]


def test_many_requests_for_one_slot(client: httpx.Client) -> None:
    """Of one request and of several; each has its answer, and the slot."""
    body = {"prompt": [P, "The cat", "A dog"], "n_predict": 4, "temperature": 0}
    alone = [each["content"] for each in client.post("/completion", json=body).json()]
    with ThreadPoolExecutor(6) as pool:
        pinned = {**body, "id_slot": 2, "n_cmpl": 2}
        found = list(pool.map(lambda _: client.post("/completion", json=pinned).json(), range(6)))
    for answers in found:
        assert [each["content"] for each in answers[::2]] == alone
        assert {each["id_slot"] for each in answers} == {2}


def test_other_names_and_numbers_for_the_same(client: httpx.Client) -> None:
    def made(**body: Any) -> dict[str, Any]:
        body = {"prompt": P, "n_predict": 4, "seed": 1, "cache_prompt": False, **body}
        found: dict[str, Any] = client.post("/completion", json=body).json()
        del found["timings"], found["id_slot"]
        return found

    assert made(logprobs=2) == made(n_probs=2)
    assert made(logprobs=True) == made(n_probs=1)
    assert made(logprobs=2, n_probs=0) == made(logprobs=False) == made()
    assert made(top_k=-1, temperature=2) == made(top_k=0, temperature=2)  # vLLM's number for all
    letters, names = made(samplers="kt"), made(samplers=["top_k", "temperature"])
    assert letters == names
    assert letters["generation_settings"]["samplers"] == ["top_k", "temperature"]


def test_choices_of_prompts_are_in_order(client: httpx.Client) -> None:
    body = {"prompt": [P, "The cat"], "n_predict": 4, "temperature": 0, "n_cmpl": 2}
    made = client.post("/completion", json=body).json()
    assert [each["index"] for each in made] == [0, 1, 2, 3]
    assert made[0]["content"] == made[1]["content"] != made[2]["content"]
    assert made[2]["content"] == made[3]["content"]
    seeded = client.post("/completion", json={**body, "temperature": 1, "seed": 1}).json()
    assert seeded[0]["content"] != seeded[1]["content"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/completion", {"prompt": [P, None]}, "prompt"),
        ("/completion", {"prompt": []}, "prompt"),
        ("/completion", {"prompt": [[1.5]]}, "prompt[0]"),
        ("/completion", {"prompt": P, "post_sampling_probs": 1}, "post_sampling_probs"),
        ("/completion", {"prompt": P, "id_slot": -2}, "id_slot"),
        ("/completion", {"prompt": P, "id_slot": "0"}, "id_slot"),
        ("/completion", {"prompt": P, "return_progress": "yes"}, "return_progress"),
        (
            "/completion",
            {"prompt": P, "stream": True, "sse_ping_interval": -2},
            "sse_ping_interval",
        ),
        ("/completion", {"prompt": P, "logit_bias": [[1.5, 1]]}, "logit_bias"),
        ("/completion", {"prompt": P, "logit_bias": [[[1], 1]]}, "logit_bias"),
        ("/completion", {"prompt": P, "samplers": "k?"}, "samplers"),
        ("/v1/chat/completions", {"messages": [], "n_indent": -1}, "messages"),
        ("/v1/completions", {"prompt": P, "n_indent": -1}, "n_indent"),
        ("/completion", {"prompt": P, "n_probs": -1}, "n_probs"),
        ("/completion", {"prompt": {"prompt_string": P, "multimodal_data": ["x"]}}, "prompt"),
        ("/completion", {"prompt": P, "response_fields": "content"}, "response_fields"),
        ("/completion", {"prompt": P, "lora": [{"id": 7, "scale": 1.0}]}, "lora"),
        ("/tokenize", {"content": 3}, "content"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/infill", {"input_prefix": "a"}, "input_suffix"),
        ("/slots/99?action=erase", {}, "id_slot"),
    ],
)
def test_bad_fields_are_named(
    client: httpx.Client, path: str, body: dict[str, Any], param: str | None
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_what_is_off_says_so(tmp_path: Path) -> None:
    with (
        running(Settings(slots=False)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for method, path, body in [
            ("GET", "/slots", None),
            ("POST", "/props", {}),
            ("POST", "/slots/0?action=save", {"filename": "a"}),
        ]:
            response = client.request(method, path, json=body)
            assert response.status_code == 501, path
            assert "serve with" in response.json()["error"]["message"]


def test_saved_slots_live_longer_than_a_server(tmp_path: Path) -> None:
    """Also beside what a process that was killed has left; a damaged one is refused."""
    settings = Settings(slot_save_path=str(tmp_path))
    body = {"prompt": P * 20, "n_predict": 4, "temperature": 0}
    with (
        running(settings, lambda: open_model(n_seq_max=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        first = client.post("/completion", json=body).json()
        saved = client.post("/slots/0?action=save", json={"filename": "cat"}).json()
    (tmp_path / ".cat.half").write_bytes((tmp_path / "cat").read_bytes()[:1000])
    (tmp_path / "cut").write_bytes((tmp_path / "cat").read_bytes()[:-100])
    (tmp_path / "link").symlink_to(tmp_path / "cat")
    with (
        running(settings, lambda: open_model(n_seq_max=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for name in ("cut", "link", ".cat.half", "..", "a/b", "a\\b", "", "x" * 250, "con\u0000"):
            response = client.post("/slots/0?action=restore", json={"filename": name})
            assert response.status_code == 400, name
            assert response.json()["error"]["param"] == "filename"
        restored = client.post("/slots/0?action=restore", json={"filename": "cat"}).json()
        assert restored["n_restored"] == saved["n_saved"]
        again = client.post("/completion", json=body).json()
        assert again["content"] == first["content"]
        assert again["timings"]["prompt_n"] == 1  # all others came from the file
        assert client.post("/slots/0?action=erase").json()["n_erased"] > 80
        assert client.post("/completion", json=body).json()["timings"]["cache_n"] == 0


def test_a_slot_that_runs_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(slot_save_path=str(tmp_path))
    with (
        running(settings, lambda: open_model(n_seq_max=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        long = {"prompt": P, "stream": True, "ignore_eos": True}
        with client.stream("POST", "/completion", json=long) as answer:
            lines = answer.iter_lines()
            next(lines)
            other = httpx.Client(base_url=server.url, timeout=60)
            with other:
                (slot,) = other.get("/slots").json()
                refused = other.get("/slots?fail_on_no_slot=1")
                busy = other.post("/slots/0?action=erase")
        if slot["is_processing"]:  # on a slow machine; it always is, or the answer was complete
            assert slot["params"]["temperature"] == 0.8
            assert slot["next_token"][0]["n_decoded"] > 0
        assert {refused.status_code, busy.status_code} <= {200, 409, 503}
        wait_for(server.is_idle)


def test_scales_of_adapters_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "adapter.gguf"
    write_adapter(path, packaged_model(), size=0.5)
    with (
        running(open=lambda: open_model(lora_adapters=[path])) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        body = {"prompt": P, "n_predict": 8, "temperature": 0}

        def text(**more: Any) -> str:
            found: str = client.post("/completion", json={**body, **more}).json()["content"]
            return found

        assert client.get("/lora-adapters").json() == [{"id": 0, "path": str(path), "scale": 1.0}]
        changed, plain = text(), text(lora=[])
        assert changed != plain
        assert client.post("/lora-adapters", json=[]).json() == {"success": True}
        assert client.get("/lora-adapters").json()[0]["scale"] == 0.0
        assert text() == plain
        client.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}])
        assert text() == changed
        assert text(lora=[{"id": 0, "scale": 0.0}]) == plain
        for bad in ([{"id": 3, "scale": 1.0}], [{"id": 0}], [{"id": 0, "scale": "x"}], [3]):
            assert client.post("/lora-adapters", json=bad).status_code == 400
