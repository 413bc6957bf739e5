"""benchmarks/structured_output.py measures, and checks answers."""

from __future__ import annotations

import pytest

from benchmarks import structured_output
from ggmlpy import packaged_model

pytest.importorskip("llguidance")


def test_all_parts_have_times() -> None:
    for times in (
        structured_output.applying(1),
        structured_output.computing(packaged_model()),
        structured_output.steps(packaged_model(), 1),
    ):
        assert times and all(time >= 0 for time in times.values())


def test_answers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jsonschema")
    assert structured_output.check_schemas(packaged_model(), 4, 1) == 0
    # As if answers were of another schema: each is found.
    import jsonschema

    strict = jsonschema.Draft202012Validator
    monkeypatch.setattr(jsonschema, "Draft202012Validator", lambda schema: strict(False))
    assert structured_output.check_schemas(packaged_model(), 4, 1) == 1
