"""Structured output beside the JSON Schema Test Suite: what is refused, and what is judged wrongly.

    python benchmarks/schema_suite.py JSON-Schema-Test-Suite/tests/draft2020-12 [--details]

The suite is https://github.com/json-schema-org/JSON-Schema-Test-Suite; folders within the given one
are left out. A schema is refused, or a grammar that should allow the valid instances and no others.
An instance counts as allowed if it is with its properties in some order, since a grammar asks for
one. Only what schemas say of values is compared: no schema is looked up elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from ggmlpy import Grammar, packaged_model
from ggmlpy.errors import GrammarError
from ggmlpy.grammar import Matchers
from ggmlpy.text.tokenizer import Tokenizer

MOST_ORDERS = 1000


@dataclass(slots=True)
class Count:
    """What became of the schemas and instances of one file."""

    n_schemas: int = 0
    n_refused: int = 0
    n_valid: int = 0
    n_invalid: int = 0
    too_narrow: list[str] = field(default_factory=list)
    too_wide: list[str] = field(default_factory=list)


def orders(value: Any) -> Iterator[Any]:
    """A value with its properties in all orders."""
    if isinstance(value, list):
        yield from map(list, product(*(list(islice(orders(each), MOST_ORDERS)) for each in value)))
    elif isinstance(value, dict):
        for names in permutations(value):
            parts = [list(islice(orders(value[name]), MOST_ORDERS)) for name in names]
            for each in product(*parts):
                yield dict(zip(names, each, strict=True))
    else:
        yield value


class Suite:
    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_gguf(packaged_model())
        self.matchers = Matchers(self.tokenizer)
        self.reasons: Counter[str] = Counter()

    def is_allowed(self, grammar: Grammar, value: Any) -> bool:
        """Whether a value's text, with its properties in some order, is one of the grammar."""
        return any(
            self._matches(grammar, json.dumps(each, ensure_ascii=False))
            for each in islice(orders(value), MOST_ORDERS)
        )

    def _matches(self, grammar: Grammar, text: str) -> bool:
        tokens = self.tokenizer.encode(text, add_bos=False, special=False)
        matcher = self.matchers.start(grammar)
        try:
            for token in tokens:
                matcher.accept(token)
        except GrammarError:
            return False
        return matcher.is_accepting

    def judge(self, path: Path) -> Count:
        count = Count()
        for case in json.loads(path.read_text(encoding="utf-8")):
            count.n_schemas += 1
            grammar = Grammar.json_schema(case["schema"])
            try:
                self.matchers.start(grammar)
            except GrammarError as error:
                count.n_refused += 1
                self.reasons[str(error).partition(": ")[2]] += 1
                continue
            for test in case["tests"]:
                is_allowed = self.is_allowed(grammar, test["data"])
                name = f"{case['description']}: {test['description']}"
                if test["valid"]:
                    count.n_valid += 1
                    count.too_narrow += [name] * (not is_allowed)
                else:
                    count.n_invalid += 1
                    count.too_wide += [name] * is_allowed
        return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--details", action="store_true", help="name the instances and reasons")
    args = parser.parse_args()
    suite = Suite()
    counts = {path.stem: suite.judge(path) for path in sorted(args.folder.glob("*.json"))}
    table = Table("file", "schemas", "refused", "valid: forbidden", "invalid: allowed")
    for name, count in counts.items():
        table.add_row(*row(name, count))
    table.add_row(*row("all", total(counts.values())))
    console = Console(width=100)
    console.print(table)
    if args.details:
        show_details(console, counts, suite.reasons)


def total(counts: Any) -> Count:
    whole = Count()
    for each in counts:
        whole.n_schemas += each.n_schemas
        whole.n_refused += each.n_refused
        whole.n_valid += each.n_valid
        whole.n_invalid += each.n_invalid
        whole.too_narrow += each.too_narrow
        whole.too_wide += each.too_wide
    return whole


def row(name: str, count: Count) -> list[str]:
    return [
        name,
        str(count.n_schemas),
        str(count.n_refused),
        f"{len(count.too_narrow)} of {count.n_valid}",
        f"{len(count.too_wide)} of {count.n_invalid}",
    ]


def show_details(console: Console, counts: dict[str, Count], reasons: Counter[str]) -> None:
    for title, attribute in (("Forbidden", "too_narrow"), ("Allowed", "too_wide")):
        console.print(f"\n{title} wrongly:")
        for name, count in counts.items():
            for each in getattr(count, attribute):
                console.print(f"  {name}: {each}", markup=False)
    console.print("\nReasons of refusals:")
    for reason, n in reasons.most_common():
        console.print(f"  {n:3} {reason}", markup=False)


if __name__ == "__main__":
    main()
