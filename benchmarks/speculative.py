"""When speculative decoding pays: decode speed by the share of drafted tokens that is accepted.

    python benchmarks/speculative.py model.gguf [--draft small.gguf] [--prompt-file report.txt]
    python benchmarks/speculative.py model.gguf --sequences 1,8 --right 0,0.5,0.8,1

The model decodes greedily without drafts, then with drafts of which each token is right with a
given probability: they are made from the text that is known by then, and cost no time. So the
figures hold for any drafter with that share, less the time that it takes. Prompt lookup and --draft
are measured as they are, on the prompt; with weights that were never trained they show nothing
about real texts, since such a model repeats itself. All of them take turns; figures are medians of
--repeat rounds, and speed-ups those of the ratios to the run without drafts of the same round.
--save writes benchmarks/results/speculative.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from ggmlpy import DraftModel, Llama, PromptLookup, packaged_model
from ggmlpy.draft import Asked, Drafter, open_drafter
from ggmlpy.engine.generation import Piece
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import GgmlpyError

RESULTS = report.RESULTS / "speculative.json"
PROMPT = "Once upon a time, there was a little girl named Lily."
N_MOST = 16  # tokens of a draft
Figures = dict[str, float]


@dataclass
class Guesses:
    """Drafts that are right with a probability: of answers that are known."""

    texts: list[list[int]]  # prompts with their answers
    right: float
    n_vocab: int
    n_most: int = N_MOST

    def draft(self, asked: Sequence[Asked]) -> list[list[int]]:
        return [self._draft(each.tokens, each.n_most) for each in asked]

    def _draft(self, tokens: list[int], n: int) -> list[int]:
        text = next((text for text in self.texts if text[: len(tokens)] == tokens), None)
        if text is None:
            return []
        rng = random.Random(len(tokens))
        truth = text[len(tokens) : len(tokens) + n]
        return [t if rng.random() < self.right else (t + 1) % self.n_vocab for t in truth]

    def close(self) -> None:
        """Nothing."""


class Nothing(Guesses):
    """No drafts."""

    def __init__(self) -> None:
        super().__init__([], 0, 1)


def decode(llm: Llama, prompts: list[list[int]], n: int, drafter: Drafter) -> list[list[int]]:
    """The answers, of `n` tokens each, that run together. `llm.timings` are those of them."""
    llm.reset()
    engine = llm.engine
    assert engine._drafts is not None
    engine._drafts.drafter = drafter
    eog = dict.fromkeys(llm.tokenizer.eog_ids, -float("inf"))
    requests = [
        llm.request(p, max_tokens=n, temperature=0, logit_bias=eog or None) for p in prompts
    ]
    ids = [engine.add(request) for request in requests]
    found: dict[int, list[int]] = {id: [] for id in ids}
    engine.timings = Timings()
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output.piece, Piece), output.piece
            if output.piece.token is not None:
                found[output.id].append(output.piece.token)
    return [found[id] for id in ids]


def measure(
    llm: Llama, prompts: list[list[int]], drafters: dict[str, Drafter], n: int, repeat: int
) -> dict[str, Figures]:
    """Speed, speed-up and acceptance by drafter, after one round that warms up."""
    plain = decode(llm, prompts, n, Nothing())
    for drafter in drafters.values():
        if isinstance(drafter, Guesses):
            drafter.texts = [p + answer for p, answer in zip(prompts, plain, strict=True)]
    rates: dict[str, list[float]] = {name: [] for name in ("none", *drafters)}
    accepted: dict[str, tuple[int, int]] = {}
    what = f"{len(prompts)} sequences"
    with report.progress(what, (repeat + 1) * len(rates)) as advance:
        for round in range(repeat + 1):
            for name, drafter in {"none": Nothing(), **drafters}.items():
                if decode(llm, prompts, n, drafter) != plain:
                    raise GgmlpyError(f"with drafts ({name}) the text is another one")
                timings = llm.timings
                if round:
                    rates[name].append(timings.generation_rate)
                accepted[name] = timings.n_accepted, timings.n_drafted
                advance(1)
    return {
        name: {
            "tokens_per_s": statistics.median(found),
            "speed_up": statistics.median(
                rate / base for rate, base in zip(found, rates["none"], strict=True)
            ),
            "n_accepted": accepted[name][0],
            "n_drafted": accepted[name][1],
        }
        for name, found in rates.items()
    }


def table_of(name: str, found: dict[int, dict[str, Figures]]) -> Table:
    table = Table(title=f"{name}: decoding with drafts")
    for heading in ("sequences", "drafts", "accepted", "tokens/s", "speed-up"):
        table.add_column(heading, justify="left" if heading == "drafts" else "right")
    for n_seqs, rows in found.items():
        for drafts, figures in rows.items():
            share = "-"
            if figures["n_drafted"]:
                share = f"{figures['n_accepted'] / figures['n_drafted']:.0%}"
            rate, ratio = figures["tokens_per_s"], figures["speed_up"]
            table.add_row(str(n_seqs), drafts, share, report.rounded(rate), f"{ratio:.2f}")
        table.add_section()
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(packaged_model()))
    parser.add_argument("--draft", metavar="FILE", help="a draft model")
    parser.add_argument("--prompt-file", metavar="FILE", help="the prompt of the first sequence")
    parser.add_argument("--right", default="0,0.5,0.8,0.95,1", help="shares, by commas")
    parser.add_argument("--sequences", type=report.numbers, default=[1, 4, 8])
    parser.add_argument("--tokens", type=report.count, default=96, help="of each answer")
    parser.add_argument("--threads", type=report.count, default=2)
    parser.add_argument("--repeat", type=report.count, default=5)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    try:
        found = _measured(options)
    except (GgmlpyError, OSError, ValueError) as error:
        return report.fail(error)
    name = Path(options.model).stem
    report.show(table_of(name, found))
    if options.save:
        entry: dict[str, Any] = {"about": report.about_run(options.threads, []), "rows": found}
        report.save(RESULTS, name, entry)
    return 0


def _measured(options: argparse.Namespace) -> dict[int, dict[str, Figures]]:
    shares = [float(share) for share in report.words(options.right)]
    text = PROMPT
    if options.prompt_file is not None:
        text = Path(options.prompt_file).read_text(encoding="utf-8")
    found = {}
    for n_seqs in options.sequences:
        with Llama(
            options.model,
            n_seq_max=n_seqs,
            n_ctx_seq=_n_ctx(text, options.tokens),
            n_threads=options.threads,
            draft_model=lambda tokens: [],
        ) as llm:
            first = llm.tokenize(text)
            prompts = [[*first, *range(300, 300 + i)] for i in range(n_seqs)]
            drafters: dict[str, Drafter] = {
                f"{share:.0%} right": Guesses([], share, llm.n_vocab()) for share in shares
            }
            more: dict[str, Any] = {"prompt lookup": PromptLookup()}
            if options.draft is not None:
                more[Path(options.draft).stem] = DraftModel(options.draft)
            for name, source in more.items():
                drafters[name] = open_drafter(source, llm._context, llm._opener, llm.tokenizer)
            report.tell(f"{n_seqs} sequences")
            found[n_seqs] = measure(llm, prompts, drafters, options.tokens, options.repeat)
            for drafter in drafters.values():
                drafter.close()
    return found


def _n_ctx(text: str, n_tokens: int) -> int:
    """Cells of a sequence: a byte is at most one token."""
    return len(text.encode()) + n_tokens + 64


if __name__ == "__main__":
    sys.exit(main())
