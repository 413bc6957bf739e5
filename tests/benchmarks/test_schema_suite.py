"""`benchmarks/schema_suite.py` finds refused schemas, and instances that are judged wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.schema_suite import Suite, orders

CASES = [
    {
        "description": "two",
        "schema": {"properties": {"b": {"type": "null"}, "a": {"type": "integer"}}},
        "tests": [
            {"description": "in another order", "data": {"a": 1, "b": None}, "valid": True},
            {"description": "wrong", "data": {"a": "1"}, "valid": False},
            {"description": "said to be wrong", "data": {"a": 1}, "valid": False},
            {"description": "said to be right", "data": {"a": 1.5}, "valid": True},
        ],
    },
    {"description": "none", "schema": {"not": {}}, "tests": []},
]


def test_counts(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(CASES))
    suite = Suite()
    count = suite.judge(file)
    assert (count.n_schemas, count.n_refused) == (2, 1)
    assert (count.n_valid, count.n_invalid) == (2, 2)
    assert count.too_narrow == ["two: said to be right"]
    assert count.too_wide == ["two: said to be wrong"]
    assert list(suite.reasons) == ['keywords that are not supported: "not"']


def test_orders() -> None:
    found = [json.dumps(each) for each in orders([{"a": 1, "b": {"c": 2, "d": 3}}, 4])]
    assert len(found) == len(set(found)) == 4
    assert '[{"b": {"d": 3, "c": 2}, "a": 1}, 4]' in found
