"""What fails while requests run: one of them, a step of all, memory, a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import httpx
import pytest

from ggmlpy import Llama
from ggmlpy.engine import pieces
from ggmlpy.engine.async_answers import Reader, _Mailbox
from ggmlpy.engine.completion import NO_CHUNK, NO_PIECE
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.generation import Piece, Request
from ggmlpy.errors import AllocationError, CacheFull
from ggmlpy.sampling import SamplingParams
from ggmlpy.server import Hosted, Models, Settings
from ggmlpy.server.errors import ApiError
from ggmlpy.server.generation import Choice, OwnForm, _arriving
from tests.server.conftest import Server, open_model, running, wait_for

SECRET = "a secret dragon"
BODY = {"max_tokens": 24, "temperature": 0, "logit_bias": {"1": -100}}
PROMPTS = [f"Once upon a time there was {who}" for who in (
    "a cat", "a dog", "a girl", "a boy", SECRET, "a bird", "a king", "a tree",
)]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(open=lambda: open_model(n_seq_max=8)) as made:
        yield made


def answer(client: httpx.Client, prompt: str) -> httpx.Response:
    return client.post("/v1/completions", json={**BODY, "prompt": prompt})


def answers(client: httpx.Client, prompts: list[str]) -> list[httpx.Response]:
    """Of requests that run at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: answer(client, prompt), prompts))


def text(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def failing(original: Callable[..., Any], secret: list[int], at: int) -> Callable[..., Any]:
    """What raises for the `at`-th token behind a prompt that ends so."""

    def call(sequence: Any, *rest: Any) -> Any:
        prompt = sequence.request.prompt
        if list(prompt[-len(secret) :]) == secret and sequence.n_decoded == at:
            raise KeyError(f"no sampler for {SECRET}")
        return original(sequence, *rest)

    return call


def test_one_request_fails_and_no_other(
    server: Server,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others have what they have alone, and the log no text of the one that fails."""
    alone = [text(answer(client, prompt)) for prompt in PROMPTS]
    secret = server.llm.tokenizer.encode(PROMPTS[4])[-3:]
    for at in (0, 7):
        with monkeypatch.context() as patched:
            patched.setattr(pieces, "_sample", failing(pieces._sample, secret, at))
            found = answers(client, PROMPTS)
            body = {**BODY, "prompt": PROMPTS[4], "stream": True}
            streamed = client.post("/v1/completions", json=body)
        assert [i for i, each in enumerate(found) if each.status_code != 200] == [4]
        assert found[4].status_code == 500
        assert found[4].json()["error"]["type"] == "server_error"
        assert [text(each) for each in found if each is not found[4]] == alone[:4] + alone[5:]
        assert "server_error" in streamed.text.strip().splitlines()[-1]
        assert "[DONE]" not in streamed.text
        assert text(answer(client, PROMPTS[4])) == alone[4]
    said = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert len(said) == 4
    assert all("KeyError at test_engine_faults.py:" in each for each in said)
    assert SECRET not in caplog.text


def test_a_message_is_logged_where_prompts_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(Settings(log_prompts=True)) as server, httpx.Client(
        base_url=server.url, timeout=60
    ) as client:  # fmt: skip
        secret = server.llm.tokenizer.encode(PROMPTS[4])[-3:]
        monkeypatch.setattr(pieces, "_sample", failing(pieces._sample, secret, 1))
        assert answer(client, PROMPTS[4]).status_code == 500
        monkeypatch.undo()
    assert f"no sampler for {SECRET}" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("broken"), 500),
        (MemoryError(), 503),
        (AllocationError("8 GiB for the compute buffer cannot be had"), 503),
    ],
)
def test_a_step_fails(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """Requests of that step get the error, and the next one its answer."""
    alone = text(answer(client, PROMPTS[0]))

    def fails(self: Engine, *rest: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_run", fails)
        found = answers(client, PROMPTS[:3])
        assert [each.status_code for each in found] == 3 * [status]
        assert all(each.json()["error"]["message"] for each in found)
        for _ in range(3):
            assert answer(client, PROMPTS[0]).status_code == status
        assert client.get("/health").status_code == 503  # no step has succeeded
    assert text(answer(client, PROMPTS[0])) == alone
    assert client.get("/health").status_code == 200


def test_a_thread_that_cannot_start(
    server: Server, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays for a later worker to run."""
    alone = text(answer(client, PROMPTS[0]))
    wait_for(lambda: not server.models.all[0].llm.answers._is_running)
    start = Thread.start

    def fails(self: Thread) -> None:
        if self.name == "ggmlpy-async":
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", fails)
        for stream in (False, True):
            body = {**BODY, "prompt": PROMPTS[1], "stream": stream}
            assert "error" in client.post("/v1/completions", json=body).text
        assert client.get("/slots").status_code == 500
    made = server.models.all[0].llm.answers
    assert not made._pending
    assert not made._jobs
    assert text(answer(client, PROMPTS[0])) == alone


def test_a_cache_that_is_too_small_for_all(caplog: pytest.LogCaptureFixture) -> None:
    """Requests that need more cells than there are wait for each other, or run again: each has the
    text that it has alone."""
    caplog.set_level(logging.INFO)
    body = {**BODY, "max_tokens": 70}

    def one(client: httpx.Client, prompt: str) -> Any:
        return text(client.post("/v1/completions", json={**body, "prompt": prompt}))

    def small() -> Any:
        return open_model(n_ctx_seq=192, n_ctx=192, n_seq_max=8, kv_layout="unified")

    with running(open=small) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        alone = [one(client, prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda prompt: one(client, prompt), PROMPTS)) == alone
        too_long = client.post("/v1/completions", json={**body, "prompt": 300 * " cat"})
        assert too_long.status_code == 400
        assert "192" in too_long.json()["error"]["message"]
        assert one(client, PROMPTS[0]) == alone[0]
        wait_for(server.is_idle)


def test_what_came_before_an_error_is_told() -> None:
    """Also where both came before somebody looked."""

    class Words(OwnForm):
        def chunks(self, pieces: Iterator[Piece]) -> Generator[dict[str, Any], None, None]:
            for piece in pieces:
                yield NO_CHUNK if piece is NO_PIECE else {"text": piece.text}

        def result(self, pieces: Iterator[Piece]) -> dict[str, Any]:
            return {"text": "".join(piece.text for piece in pieces)}

    async def main() -> None:
        reader = Reader(_Mailbox(asyncio.get_running_loop()))
        choice = Choice(Request([1], 3, SamplingParams()), Words(), lambda timings, reason: None)
        for each in (Piece("a", 1), Piece("b", 2), CacheFull("too small")):
            reader.deliver(each)
        found = []
        with pytest.raises(CacheFull):
            async for chunks in _arriving(choice, reader):
                found.append(chunks)
        assert found == [[{"text": "a"}, {"text": "b"}]]

    asyncio.run(main())


def test_an_error_without_a_message_has_its_name() -> None:
    """Of a model that cannot be loaded."""

    def no_memory() -> Llama:
        raise MemoryError

    async def main() -> None:
        models = Models([Hosted(["m"], no_memory, 1)])
        with pytest.raises(ApiError, match="cannot be loaded: MemoryError") as refused:
            async with models.using("m"):
                pass
        assert refused.value.status == 503

    asyncio.run(main())
