"""Records what llama-server answers with the packaged model: tests/server/llama_server.json.

    python -m tests.tools.record_llama_server --bin DIR

DIR has the built llama-server.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from ggmlpy import packaged_model

OUT = Path(__file__).parents[1] / "server" / "llama_server.json"
P = "Once upon a time"
_GREEDY = {"prompt": P, "temperature": 0}
_DOG = "The dog ran"
_SHORT = {"response_fields": ["content", "stop_type", "stopping_word", "id_slot"]}
# Method, path, body; they run in this order, on slot 0 alone.
CASES: list[tuple[str, str, Any]] = [
    ("POST", "/completion", {**_GREEDY, "n_predict": 4}),
    ("POST", "/completions", {**_GREEDY, "n_predict": 6, "n_probs": 3, "return_tokens": True}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 20, "stop": [" little", "xyz"]}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "stream": True, "n_probs": 1}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "prompt": [P, "The"]}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "prompt": [P]}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "prompt": [510, " upon", 260]}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "prompt": {"prompt_string": P}}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "prompt": [[0, 510], P]}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "prompt": ""}),
    (
        "POST",
        "/completion",
        {
            **_GREEDY,
            "n_predict": 3,
            "response_fields": ["content", "generation_settings/n_predict", "nothing/here"],
        },
    ),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "logit_bias": [[13, False], [285, 1.5]]}),
    ("POST", "/completion", {"n_predict": 3}),
    ("POST", "/completion", {**_GREEDY, "n_predict": "many"}),
    ("POST", "/completion", {**_GREEDY, "prompt": "word " * 600}),
    ("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ("POST", "/tokenize", {"content": P}),
    ("POST", "/tokenize", {"content": P, "add_special": True, "with_pieces": True}),
    ("POST", "/tokenize", {"content": "<s>x"}),
    ("POST", "/tokenize", {"content": "<s>x", "parse_special": False}),
    ("POST", "/tokenize", {"content": "héllo 世界", "with_pieces": True}),
    ("POST", "/tokenize", {"content": [510, " upon"]}),
    ("POST", "/tokenize", {}),
    ("POST", "/detokenize", {"tokens": [0, 510, 536]}),
    ("POST", "/detokenize", {}),
    ("POST", "/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("GET", "/props", None),
    ("POST", "/props", {}),
    ("GET", "/slots", None),
    ("GET", "/slots?fail_on_no_slot=1", None),
    ("POST", "/slots/0?action=save", {"filename": "kept"}),
    ("POST", "/slots/0?action=restore", {"filename": "kept"}),
    ("POST", "/slots/0?action=erase", None),
    ("POST", "/slots/0?action=save", {"filename": "../kept"}),
    ("POST", "/slots/0?action=restore", {"filename": "missing"}),
    ("POST", "/slots/x?action=erase", None),
    ("POST", "/slots/0?action=cut", {}),
    ("GET", "/lora-adapters", None),
    ("POST", "/lora-adapters", []),
    ("POST", "/lora-adapters", {}),
    ("GET", "/health", None),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "n_probs": 3, "post_sampling_probs": True}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 30, **_SHORT, "n_indent": 1, "prompt": _DOG}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, **_SHORT, "id_slot": 5}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "cache_prompt": False, "n_discard": 7}),
    (
        "POST",
        "/completion",
        {**_GREEDY, "n_predict": 3, "logit_bias": [[" there was", -5], ["a", False]]},
    ),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "logit_bias": {",": -100, "376": 3}}),
    ("POST", "/completion", {**_GREEDY, "n_predict": 3, "samplers": "kt"}),
    ("POST", "/completion", {**_GREEDY, "n_indent": -1}),
    ("POST", "/completion", {**_GREEDY, "n_discard": -1}),
    ("POST", "/completion", {**_GREEDY, "stream": True, "sse_ping_interval": -3}),
]
# What is compared in part: the progress of streams, and probabilities of tokens that are drawn.
_STREAM = {"n_predict": 2, "stream": True, "return_progress": True, "timings_per_token": True}
_DRAWN = {"prompt": f"{P},", "n_predict": 1, "n_probs": 9, "post_sampling_probs": True, "seed": 1}
PROGRESS_CASES: list[tuple[str, str, Any]] = [
    ("POST", "/completion", {**_GREEDY, **_STREAM, "prompt": _DOG}),
    ("POST", "/completion", {**_GREEDY, **_STREAM, "prompt": f"{_DOG} home"}),
    ("POST", "/v1/completions", {**_GREEDY, **_STREAM, "prompt": f"{_DOG} home and"}),
]
DRAWN_CASES: list[tuple[str, str, Any]] = [
    ("POST", "/completion", {**_DRAWN, "temperature": 0.8}),
    ("POST", "/completion", {**_DRAWN, "temperature": 2, "top_k": 5, "min_p": 0, "top_p": 1}),
    ("POST", "/completion", {**_DRAWN, "temperature": 1, "min_p": 0, "samplers": ["temperature"]}),
]
# Metadata with which tokens of the vocabulary are those for filling in, and a context for it.
FIM = {
    "llama.context_length": 4096,
    "tokenizer.ggml.fim_pre_token_id": 500,
    "tokenizer.ggml.fim_suf_token_id": 501,
    "tokenizer.ggml.fim_mid_token_id": 502,
    "tokenizer.ggml.fim_rep_token_id": 503,
    "tokenizer.ggml.fim_sep_token_id": 504,
}
_MIDDLE = {"input_prefix": "The cat ", "input_suffix": " home.", "temperature": 0, "n_predict": 4}
FIM_CASES: list[tuple[str, str, Any]] = [
    ("POST", "/infill", _MIDDLE),
    ("POST", "/infill", {**_MIDDLE, "prompt": "sat", "input_prefix": "a b c " * 700}),
    ("POST", "/infill", {**_MIDDLE, "input_suffix": "a b c " * 300}),
    ("POST", "/infill", {**_MIDDLE, "input_extra": [{"filename": "a.txt", "text": "A dog."}]}),
]


def answer_of(client: httpx.Client, method: str, path: str, body: Any) -> dict[str, Any]:
    """The status and the JSON of an answer; of a stream that of its events."""
    response = client.request(method, path, json=body)
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    if lines and response.headers["content-type"].startswith("text/event-stream"):
        return {"status": 200, "events": [json.loads(line[6:]) for line in lines]}
    return {"status": response.status_code, "body": response.json()}


def main() -> None:
    """Ask a server, and write its answers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    server = parser.parse_args().bin / "llama-server"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    overrides = ",".join(f"{name}=int:{value}" for name, value in FIM.items())
    answers = _answers(server, port, ["-c", "512"], CASES)
    answers += _answers(server, port, ["-c", "4096", "--override-kv", overrides], FIM_CASES)
    answers += _answers(server, port, ["-c", "512"], PROGRESS_CASES + DRAWN_CASES)
    text = json.dumps(answers, ensure_ascii=False).replace(str(packaged_model()), "stories.gguf")
    rows = [json.dumps(each, ensure_ascii=False) for each in json.loads(text)]
    OUT.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def _answers(
    server: Path, port: int, flags: list[str], cases: list[tuple[str, str, Any]]
) -> list[Any]:
    """The answers of a server that runs for them."""
    with tempfile.TemporaryDirectory() as folder:
        always = f"--port {port} -np 1 --props --metrics --alias stories --slot-save-path {folder}"
        command = [str(server), "-m", str(packaged_model()), *always.split(), *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url, answers = f"http://127.0.0.1:{port}", []
            _wait(url)
            for case in cases:  # each on a connection of its own: it closes some without a word
                with httpx.Client(base_url=url, timeout=60) as client:
                    answers.append(answer_of(client, *case))
        finally:
            process.terminate()
            process.wait()
    return answers


def _wait(url: str) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("llama-server did not start")


if __name__ == "__main__":
    main()
