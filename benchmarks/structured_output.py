"""What structured output costs: masks of tokens, sampling under them, whole steps.

    python benchmarks/structured_output.py [-m model.gguf] [--vocab vocab.gguf] [--peer PYTHON]
    python benchmarks/structured_output.py --schemas 200 --seeds 3

Applying a mask is measured with random logits for a vocabulary of 128 K, beside the rest of
sampling; computing one, along a JSON text with the tokens of --vocab. Steps are those of -m, by
default the model in the package. --peer, an interpreter that has llama-cpp-python, adds llama.cpp's
grammar: for the same text and vocabulary the time in which it limits the candidates, and its steps
with the same model. --schemas instead lets the model answer so many random schemas and checks the
answers. Times are medians in us; --save writes benchmarks/results/structured_output.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from ggmlpy import Grammar, Llama, SamplingParams, packaged_model
from ggmlpy.errors import GgmlpyError
from ggmlpy.grammar import Matchers
from ggmlpy.sampling import Sampler
from ggmlpy.text.tokenizer import Tokenizer

RESULTS = report.RESULTS / "structured_output.json"
N_VOCAB = 128_256
N_TOKENS = 100
SCHEMA = {
    "type": "object",
    "properties": {
        "name_of_the_person": {"type": "string"},
        "age": {"type": "integer"},
        "friends": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name_of_the_person", "age", "friends"],
    "additionalProperties": False,
}
TEXT = (
    '{"name_of_the_person": "Ben, who was happy and did not like the rain", "age": 12,'
    ' "friends": ["Tom and Lily", "The quick brown fox", "Zoë"]}'
)
Times = dict[str, float]


def median_us(run: Callable[[], object], repeat: int) -> float:
    run()
    times = []
    for _ in range(repeat):
        started = perf_counter()
        run()
        times.append(1e6 * (perf_counter() - started))
    return statistics.median(times)


def applying(repeat: int) -> Times:
    """Sampling of 128 K logits, without a mask and with one that allows a share of the tokens."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, N_VOCAB).astype(np.float32)
    chains: dict[str, dict[str, Any]] = {
        "default sampling": {},
        "greedy": {"temperature": 0},
        "top_k 0": {"top_k": 0},
    }
    found: Times = {}
    for name, params in chains.items():
        sampler = Sampler(SamplingParams(seed=1, **params), N_VOCAB)
        found[name] = median_us(lambda s=sampler: s.sample(logits), repeat)  # type: ignore[misc]
        for share in (0.0005, 0.1, 0.9):
            bits = rng.random(-(-N_VOCAB // 64) * 64) < share
            mask = np.packbits(bits, bitorder="little").view(np.uint64)
            run: Callable[[], object] = lambda s=sampler, m=mask: s.sample(logits, m)  # type: ignore[misc]  # noqa: E731
            found[f"{name}, {100 * share:g} % allowed"] = median_us(run, repeat)
    from llguidance.numpy import apply_token_bitmask_inplace

    words = mask.view(np.int32)[None, : -(-N_VOCAB // 32)]
    found["llguidance's numpy, the mask alone"] = median_us(
        lambda: apply_token_bitmask_inplace(logits[None].copy(), words), repeat // 5 + 1
    )
    return found


def computing(vocab: Path) -> Times:
    """Masks, and going on behind each token of TEXT, at first and when the text is known."""
    tokenizer = Tokenizer.from_gguf(vocab)
    matchers = Matchers(tokenizer)
    started = perf_counter()
    grammar = Grammar.json_schema(SCHEMA)
    matchers.start(grammar)
    found = {"vocabulary, once": 1e6 * (perf_counter() - started)}
    started = perf_counter()
    matchers.start(Grammar.json_schema({**SCHEMA, "title": "another"}))
    found["grammar, once"] = 1e6 * (perf_counter() - started)
    for when in ("first time", "again"):
        made = matchers.start(grammar)
        masks, rest = [], []
        for token in tokenizer.encode_part(TEXT):
            started = perf_counter()
            made.allowed()
            after = perf_counter()
            made.accept(token)
            masks.append(1e6 * (after - started))
            rest.append(1e6 * (perf_counter() - after))
        found[f"mask, {when}"] = statistics.median(masks)
        found[f"mask, {when}, mean"] = statistics.mean(masks)
        found[f"mask, {when}, longest"] = max(masks)
        found[f"accepting, {when}"] = statistics.median(rest)
    return found


def steps(model: Path, n_threads: int | None) -> Times:
    """A token of a completion, alone and of 8 side by side."""
    found: Times = {}
    form = {"type": "json_object", "schema": SCHEMA}
    for n_seqs in (1, 8):
        with Llama(model, n_ctx_seq=512, n_seq_max=n_seqs, n_threads=n_threads) as llm:
            for name, options in (("", {}), (" with a grammar", {"response_format": form})):
                times, n_forced, n_all = [], 0, 0
                for seed in range(4):
                    requests = [
                        llm.request(f"A boy {i}:", max_tokens=N_TOKENS, seed=seed, **options)  # type: ignore[arg-type]
                        for i in range(n_seqs)
                    ]
                    llm.reset()
                    started = perf_counter()
                    results = list(llm.generate(requests))
                    spent = 1e6 * (perf_counter() - started)
                    n = sum(each["usage"]["completion_tokens"] for each in results)
                    times.append(spent / n)
                    n_forced += llm.timings.n_forced
                    n_all += n
                found[f"{n_seqs} at a time{name}, a token"] = statistics.median(times[1:])
                if options:
                    found[f"{n_seqs} at a time, % forced"] = 100 * n_forced / n_all
    return found


def peer_times(python: str, model: Path, vocab: Path | None, n_threads: int) -> Times:
    """llama.cpp's."""
    asked = {
        "model": str(model.resolve()),
        "vocab": str(vocab.resolve()) if vocab else "",
        "schema": SCHEMA,
        "text": TEXT,
        "n_tokens": N_TOKENS,
        "n_threads": n_threads,
    }
    done = subprocess.run(
        [python, "-m", "benchmarks.peer_grammar"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    if done.returncode:
        raise GgmlpyError(f"{python}: {done.stderr.strip().splitlines()[-1:]}")
    said = json.loads(done.stdout)
    found: Times = {}
    if "apply_us" in said:
        found["limiting the candidates"] = statistics.median(said["apply_us"])
        found["limiting the candidates, mean"] = statistics.mean(said["apply_us"])
        found["limiting the candidates, longest"] = max(said["apply_us"])
    found["a token"] = said["step_us"]
    found["a token with a grammar"] = said["step_with_grammar_us"]
    return found


def check_schemas(model: Path, n_schemas: int, n_seeds: int) -> int:
    """How many answers to random schemas are finished; all of these must be valid."""
    import jsonschema

    from tests.grammar.schemas import random_schema

    schemas = [random_schema(seed) for seed in range(n_schemas)]
    n_finished, n_invalid = 0, 0
    with Llama(model, n_ctx_seq=512, n_seq_max=8) as llm:
        pairs = [(schema, seed) for schema in schemas for seed in range(n_seeds)]
        requests = [
            llm.request(
                "A boy:",
                response_format={"type": "json_object", "schema": schema},
                max_tokens=480,
                seed=seed,
            )
            for schema, seed in pairs
        ]
        for (schema, _), result in zip(pairs, llm.generate(requests), strict=True):
            answer = result["choices"][0]
            if answer["finish_reason"] != "stop":
                continue
            n_finished += 1
            try:
                jsonschema.Draft202012Validator(schema).validate(json.loads(answer["text"]))
            except ValueError as error:
                n_invalid += 1
                report.tell(f"{json.dumps(schema)}: {answer['text']!r}: {error}")
            except jsonschema.ValidationError as error:
                n_invalid += 1
                report.tell(f"{json.dumps(schema)}: {answer['text']!r}: {error.message}")
    report.tell(f"{len(pairs)} answers, {n_finished} finished, {n_invalid} of them not valid")
    return 1 if n_invalid else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, default=packaged_model(), metavar="FILE")
    parser.add_argument("--vocab", type=Path, metavar="FILE", help="of 128 K tokens, say")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("-t", "--threads", type=report.count, default=1)
    parser.add_argument("--repeat", type=report.count, default=100)
    parser.add_argument("--schemas", type=report.count, metavar="N")
    parser.add_argument("--seeds", type=report.count, default=1, metavar="N")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    if options.schemas:
        return check_schemas(options.model, options.schemas, options.seeds)
    about = report.about_run(options.threads, [])
    try:
        found = {
            f"sampling, {N_VOCAB} tokens": applying(options.repeat),
            "masks": computing(options.vocab or options.model),
            f"steps of {options.model.name}": steps(options.model, options.threads),
        }
        if options.peer:
            found["llama.cpp"] = peer_times(
                options.peer, options.model, options.vocab, options.threads
            )
    except GgmlpyError as error:
        return report.fail(error)
    table = Table("", "", "us")
    for part, times in found.items():
        for name, time in times.items():
            table.add_row(part, name, f"{time:.1f}")
    report.show(table)
    if options.save:
        report.save(RESULTS, options.model.name, {"about": about, "us": found})
    report.warn(report.warnings_of(about, []))
    return 0


if __name__ == "__main__":
    sys.exit(main())
