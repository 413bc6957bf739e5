"""Replicas on a Ray cluster of two nodes, which are processes of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="the extra ggmlpy[ray] is not installed")
import ray

from ggmlpy import Llama, packaged_model
from ggmlpy.server.settings import Settings
from tests.server.conftest import MODEL, open_model, wait_for

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
N_REPLICAS = 2


def open_replica() -> Llama:
    return open_model(n_seq_max=4, n_threads=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Its address."""
    from ray.cluster_utils import Cluster

    # Replicas import the tests too, as they were given a function of them.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    assert len(ray.nodes()) == 2
    yield made.address
    ray.shutdown()
    made.shutdown()


@contextmanager
def served(least: int, **more: Any) -> Iterator[httpx.Client]:
    """A client of `least` to N_REPLICAS replicas, each on a node of its own: one has one core."""
    from ray import serve

    from ggmlpy.server.cluster.running import Scale, start

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings(api_keys=frozenset({"key"}))
    scale = Scale(least, N_REPLICAS, n_cpus=1, n_parallel=4, **more)
    start([MODEL], open_replica, settings, scale, host="127.0.0.1", port=port)
    headers = {"Authorization": "Bearer key"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as made:
        yield made
    serve.shutdown()


@pytest.fixture(scope="module")
def client(cluster: str) -> Iterator[httpx.Client]:
    with served(N_REPLICAS) as made:
        yield made


def replicas() -> list[Any]:
    from ray.util.state import list_actors

    found = list_actors(filters=[("state", "=", "ALIVE")])
    return [each for each in found if "ServeReplica:ggmlpy:replicas" in each.class_name]


def n_running(replica: Any) -> int:
    """How many requests a replica answers at the moment."""
    actor = ray.get_actor(replica.name, namespace="serve")
    return int(ray.get(actor.get_num_ongoing_requests.remote()))


def test_answers_are_those_of_one_process(client: httpx.Client) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": f"The dog {i}", "max_tokens": 8, "seed": i, "temperature": i % 2}
        for i in range(12)
    ]
    with open_model(n_seq_max=4) as llm:
        wanted = [llm.create_completion(**body)["choices"][0]["text"] for body in bodies]

    def ask(body: dict[str, Any]) -> str:
        made = client.post("/v1/completions", json=body)
        assert made.status_code == 200, made.text
        return str(made.json()["choices"][0]["text"])

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, bodies)) == wanted
    assert len(replicas()) == N_REPLICAS
    assert len({each.node_id for each in replicas()}) == N_REPLICAS


def test_streams_errors_and_keys_come_through(client: httpx.Client) -> None:
    body = {"prompt": "The dog", "max_tokens": 5, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) == 6
    refused = client.post("/v1/completions", json={"prompt": "a", "top_p": 3})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_p")
    assert client.post("/v1/completions", content=b"{").status_code == 400
    wrong = client.get("/v1/chat/completions", headers={"Authorization": "Bearer x"})
    assert wrong.status_code == 405
    body = {"prompt": "a", "max_tokens": 1}
    assert client.post("/v1/completions", json=body, headers={"Authorization": "x"}).is_error
    assert client.get("/v1/models").json()["data"][0]["id"] == MODEL


def test_the_same_beginning_goes_to_the_same_replica(client: httpx.Client) -> None:
    """Its tokens are in the cache of that one from the second request on."""
    for story in ("A king had a horse. ", "A girl had a red hat. "):
        n_cached = []
        for i in range(5):
            body = {"prompt": story * 20 + f"The end {i}", "max_tokens": 1, "temperature": 0}
            usage = client.post("/v1/completions", json=body).json()["usage"]
            n_cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert n_cached[0] < 5
        assert min(n_cached[1:]) > usage["prompt_tokens"] - 10


def test_a_client_that_leaves_frees_its_sequence(client: httpx.Client) -> None:
    """More of them than all replicas have sequences: the next request is answered."""
    body = {"prompt": "The dog", "max_tokens": 400, "ignore_eos": True, "stream": True}
    for _ in range(4 * N_REPLICAS + 2):
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
    made = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=20)
    assert made.status_code == 200


def test_a_replica_that_dies_is_replaced(client: httpx.Client) -> None:
    before = {each.actor_id for each in replicas()}
    victim = replicas()[0]
    os.kill(victim.pid, 9)

    def is_answered() -> bool:
        return client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).is_success

    wait_for(is_answered, limit_s=60)
    wait_for(lambda: len({each.actor_id for each in replicas()} - before) == 1, limit_s=120)
    for i in range(8):
        body = {"prompt": f"The dog {i}", "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200


def test_load_makes_a_second_replica_and_idle_time_ends_it(
    cluster: str, client: httpx.Client
) -> None:
    """It needs the cores of the other replicas, so it is after their tests."""
    from ray import serve

    serve.shutdown()
    with served(1, grow_s=1.0, shrink_s=2.0) as growing, ThreadPoolExecutor(24) as pool:
        (first,) = replicas()
        body = {"prompt": "The dog", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
        wanted = growing.post("/v1/completions", json=body).json()["choices"][0]["text"]
        has_grown = Event()

        def load() -> None:
            while not has_grown.is_set():
                made = growing.post("/v1/completions", json=body)
                assert made.json()["choices"][0]["text"] == wanted

        running = [pool.submit(load) for _ in range(24)]
        try:
            wait_for(lambda: len(replicas()) == 2, limit_s=60)
            second = next(each for each in replicas() if each.actor_id != first.actor_id)
            wait_for(lambda: n_running(second) > 0, limit_s=60)
        finally:
            has_grown.set()
        for each in running:
            each.result()
        assert second.node_id != first.node_id
        wait_for(lambda: len(replicas()) == 1, limit_s=60)
        made = growing.post("/v1/completions", json=body)
        assert made.json()["choices"][0]["text"] == wanted


def test_files_of_requests(cluster: str, client: httpx.Client, tmp_path: Path) -> None:
    """The same answers as from one process. It needs the cores of the replicas, so it is last."""
    from ray import serve

    serve.shutdown()
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {
            "custom_id": f"r{i}",
            "url": "/v1/completions",
            "body": {"prompt": f"The cat {i}", "max_tokens": 6, "temperature": 0},
        }
        for i in range(40)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["batch", source, out, "-np", "4", "-t", "1", "--ray", "--replicas", "1-2"]
    done = subprocess.run(
        [sys.executable, "-m", "ggmlpy", *map(str, arguments), "--ray-address", cluster],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for line in out.read_text().splitlines():
        data = json.loads(line)
        found[data["custom_id"]] = data["response"]["body"]["choices"][0]["text"]
    with Llama(packaged_model()) as llm:
        for i in range(40):
            made = llm.create_completion(f"The cat {i}", max_tokens=6, temperature=0)
            assert found[f"r{i}"] == made["choices"][0]["text"]
