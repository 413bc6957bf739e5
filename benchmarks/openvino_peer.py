"""OpenVINO GenAI as an engine to be measured, through its ContinuousBatchingPipeline.

    /path/to/its/python -m benchmarks.openvino_peer        see benchmarks/worker.py

Runs in an interpreter that has openvino-genai, with the openvino of the same release, and need not
have anything else of ours: only this file and worker.py are used. The pipeline reads the GGUF file
itself, with its defaults for weights and cache. Prompts are token ids. It takes the tokens that it
decodes from its own greedy choice, since it cannot be given others; a random model's speed does not
depend on them. Sequences of one test are added together, and one step processes all their prompts.
"""

from __future__ import annotations

import importlib
import json
from time import perf_counter
from typing import Any

from benchmarks.worker import peak_bytes, random_tokens, serve

# Of a step: as many as the prompts of all sequences have, so that these begin to decode together.
_MAX_TOKENS = 1 << 16


class OpenVino:
    """One model; its cache grows with what is asked of it."""

    def __init__(self) -> None:
        self._api: Any = importlib.import_module("openvino_genai")
        self._core: Any = importlib.import_module("openvino")
        self._numpy: Any = importlib.import_module("numpy")
        self._pipeline: Any = None
        self._n_requests = 0
        self._last = {"token": -1, "logprob": 0.0}

    def about(self) -> dict[str, str]:
        return {
            "name": "OpenVINO",
            "version": self._api.__version__,
            "build": str(self._core.__version__),
        }

    def load(self, path: str, n_threads: int) -> float:
        scheduler = self._api.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # the same prompt is run again
        scheduler.max_num_batched_tokens = _MAX_TOKENS
        scheduler.cache_size = 0  # grows
        started = perf_counter()
        self._pipeline = self._api.ContinuousBatchingPipeline(
            models_path=path,
            scheduler_config=scheduler,
            device="CPU",
            properties={"INFERENCE_NUM_THREADS": n_threads},
        )
        spent_s = perf_counter() - started
        self._n_vocab = len(self._pipeline.get_tokenizer().get_vocab())
        return spent_s

    def first_token(self, path: str, n_threads: int, n_ctx: int) -> float:
        return self.load(path, n_threads) + self.prompt(1)

    def open(self, n_ctx: int, n_seq_max: int, layout: str, type_k: str, type_v: str) -> float:
        return 0.0

    def prepare(self, depths: list[int]) -> None:
        """Each test runs its prompts itself."""

    def prompt(self, n_tokens: int) -> float:
        handle = self._add(random_tokens(self._n_vocab, 1, n_tokens)[0], 1)
        started = perf_counter()
        self._finish()
        spent_s = perf_counter() - started
        (answer,) = handle.read_all()
        logprob = float(answer.generated_log_probs[0])
        self._last = {"token": int(answer.generated_ids[0]), "logprob": logprob}
        return spent_s

    def decode(
        self, n_seqs: int, n_steps: int, depth: int, n_warm: int, interleaved: bool
    ) -> list[float]:
        n_all = n_warm + n_steps
        prompts = random_tokens(self._n_vocab, n_seqs, max(1, depth))
        handles = [self._add(tokens, n_all + 1) for tokens in prompts]
        self._pipeline.step()  # the prompts, and the first token of each
        seconds = []
        for _ in range(n_all):
            started = perf_counter()
            self._pipeline.step()
            seconds.append(perf_counter() - started)
        if self._pipeline.has_non_finished_requests():
            self._finish()
            raise RuntimeError(f"{n_all} steps did not decode a token of all {n_seqs} sequences")
        if any(len(handle.read_all()[0].generated_ids) != n_all + 1 for handle in handles):
            raise RuntimeError("a sequence ended early")
        return seconds[n_warm:]

    def _add(self, tokens: list[int], n_new: int) -> Any:
        options = self._api.GenerationConfig()
        options.max_new_tokens = n_new
        options.ignore_eos = True
        options.do_sample = False
        options.logprobs = 1
        ids = self._core.Tensor(self._numpy.array([tokens], self._numpy.int64))
        self._n_requests += 1
        return self._pipeline.add_request(self._n_requests, ids, options)

    def _finish(self) -> None:
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()

    def logits(self) -> str:
        """Of the last prompt only the likeliest token and its log-probability, as JSON in
        hexadecimal digits: the pipeline gives no logits."""
        return json.dumps(self._last).encode().hex()

    def resident_bytes(self) -> dict[str, int]:
        return {"peak": peak_bytes()}


if __name__ == "__main__":
    serve(OpenVino)
