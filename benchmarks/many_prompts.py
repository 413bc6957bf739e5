"""Many prompts of mixed length: together on a few sequences, compared with one after the other.

    python benchmarks/many_prompts.py [model.gguf] [--prompts 200] [--sequences 8] [--save]

The sequences share a cache that is too small for all of them at full length, so some are preempted
and swapped in again. Each setup runs in a process of its own, for its peak of resident memory.
Sampling is greedy, and logits have the same bits in both setups, so texts must be the same: if any
differs, nothing is saved and the exit code is 1. Prints a table; --save writes
benchmarks/results/many_prompts.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

import ggmlpy
from benchmarks import report
from benchmarks.worker import peak_bytes
from ggmlpy import Llama
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.cli.table import Column, Table

RESULTS = report.RESULTS / "many_prompts.json"

WORDS = (
    "a", "the", "little", "big", "happy", "old", "red", "dog", "cat", "bird", "girl", "boy", "tree",
    "house", "ball", "day", "garden", "friend", "mother", "saw", "found", "had", "made", "wanted",
    "played", "ran", "said", "with", "and", "in", "to", "of", "for", "near", "under", "her", "his",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """What is written, and by what; the same for every layout."""

    model: Path
    prompts: tuple[str, ...]
    max_tokens: int
    n_threads: int | None = None
    backend: str = "auto"


@dataclass(frozen=True, slots=True)
class Layout:
    """How many sequences run together, and the cells that they share."""

    n_seq_max: int
    n_ctx: int
    n_ctx_seq: int


@dataclass(frozen=True, slots=True)
class Row:
    """One layout's run over all prompts."""

    layout: Layout
    spent_s: float
    n_prompts: int
    n_prompt_tokens: int  # as given; of these so many were not run again:
    n_reused: int
    n_generated: int
    max_cells_used: int
    n_preempted: int
    n_plans_built: int
    peak_resident_bytes: int
    texts: tuple[str, ...]

    @property
    def rates(self) -> dict[str, float]:
        """What is done in a second."""
        return {
            "prompts_per_s": self.n_prompts / self.spent_s,
            "prompt_tokens_per_s": self.n_prompt_tokens / self.spent_s,
            "generated_tokens_per_s": self.n_generated / self.spent_s,
        }


def mixed_prompts(n: int, most_words: int, seed: int) -> tuple[str, ...]:
    """Prompts of 1 to `most_words` words, the same for the same seed."""
    rng = random.Random(seed)
    return tuple(" ".join(rng.choices(WORDS, k=rng.randint(1, most_words))) for _ in range(n))


def measure(work: Work, layout: Layout) -> Row:
    """Run all prompts in this process; the first two once before that, to warm up."""
    with Llama(
        work.model,
        n_ctx=layout.n_ctx,
        n_ctx_seq=layout.n_ctx_seq,
        n_seq_max=layout.n_seq_max,
        kv_unified=True,
        n_threads=work.n_threads,
        backend=work.backend,
    ) as llm:
        list(llm.generate(work.prompts[:2], max_tokens=2, temperature=0))
        llm.reset()
        llm.engine.max_cells_used = 0
        started = perf_counter()
        made = list(llm.generate(work.prompts, max_tokens=work.max_tokens, temperature=0))
        spent_s = perf_counter() - started
        return Row(
            layout=layout,
            spent_s=spent_s,
            n_prompts=len(made),
            n_prompt_tokens=sum(result["usage"]["prompt_tokens"] for result in made),
            n_reused=llm.timings.n_reused,
            n_generated=sum(result["usage"]["completion_tokens"] for result in made),
            max_cells_used=llm.engine.max_cells_used,
            n_preempted=llm.timings.n_preempted,
            n_plans_built=llm.n_plans_built,
            peak_resident_bytes=peak_bytes(),
            texts=tuple(result["choices"][0]["text"] for result in made),
        )


def measure_alone(work: Work, layout: Layout) -> Row:
    """`measure` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(measure, work, layout).result()


def show(rows: Sequence[Row]) -> None:
    """A line a layout."""
    titles = (
        "sequences", "prompts/s", "tokens in/s", "tokens out/s", "cells used", "preempted",
        "plans", "peak MB",
    )  # fmt: skip
    table = Table([Column(title) for title in titles])
    for row in rows:
        table.row(
            [
                str(row.layout.n_seq_max),
                *(f"{rate:.1f}" for rate in row.rates.values()),
                f"{row.max_cells_used}/{row.layout.n_ctx}",
                str(row.n_preempted),
                str(row.n_plans_built),
                f"{row.peak_resident_bytes / 1e6:.1f}",
            ]
        )


def layouts(work: Work, n_sequences: int, share: float) -> list[Layout]:
    """All together in `share` of the cells that they could fill, and one at a time."""
    with Llama(work.model, n_ctx=1, backend="null") as llm:
        longest = max(len(llm.tokenize(prompt)) for prompt in work.prompts)
    n_ctx_seq = longest + work.max_tokens - 1  # the last token written is not run
    n_ctx = max(n_ctx_seq, int(n_sequences * n_ctx_seq * share))
    return [Layout(n_sequences, n_ctx, n_ctx_seq), Layout(1, n_ctx_seq, n_ctx_seq)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", type=Path, default=ggmlpy.packaged_model())
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--words", type=int, default=60, help="of the longest prompt")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.5, help="of the cells that all could fill")
    parser.add_argument("--threads", type=int, help="one per core unless given")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args(arguments)
    prompts = mixed_prompts(options.prompts, options.words, seed=1)
    work = Work(
        options.model, prompts, options.max_tokens,
        n_threads=options.threads, backend=options.backend,
    )  # fmt: skip
    rows = [measure_alone(work, each) for each in layouts(work, options.sequences, options.share)]
    show(rows)
    n_same = sum(a == b for a, b in zip(rows[0].texts, rows[1].texts, strict=True))
    print(f"{n_same} of {len(prompts)} texts are the same in both")
    if n_same < len(prompts):
        sys.exit(f"{len(prompts) - n_same} texts differ, and none may")
    if options.save:
        figures = [asdict(row) | row.rates for row in rows]
        for row in figures:
            del row["texts"]
        about = report.about_run(options.threads or default_n_threads(), [])
        entry = {**about, "max_tokens": options.max_tokens, "same_texts": n_same, "rows": figures}
        report.save(RESULTS, options.model.name, entry)


if __name__ == "__main__":
    main()
