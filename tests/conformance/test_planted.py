"""Planted mistakes of kernels are found, and shrunk to a case that fits on a line and replays.

Those of schedulers, allocators and passes are found by random graphs: test_graphs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.conformance import CASES, Subject
from ggmlpy.conformance.checks import check_case, check_node
from ggmlpy.conformance.replay import load_case, save_case
from ggmlpy.conformance.suite import failure_of, shrink_case
from tests.conformance.faulty import FaultyBackend, Mistake
from tests.conformance.planted_nodes import PLANTED

LINE = 100


def of_op(name: str, mistake: Mistake) -> Mistake:
    """The mistake in nodes of one op alone. A case has the name of the function: rope_ext."""
    return lambda work: name.startswith(work.op.name) and mistake(work)


@pytest.mark.parametrize("name", PLANTED)
def test_is_found_and_shrunk_to_a_line(name: str, tmp_path: Path) -> None:
    op, mistake = PLANTED[name]
    backend = FaultyBackend(of_op(op, mistake))
    subject = Subject(backend)
    found = next(case for case in CASES if case.op == op and failure_of(case, subject))
    small, wrong = shrink_case(found, subject)
    assert len(small.id) <= LINE and wrong
    assert check_case(small, ReferenceBackend()) == ""
    saved = load_case(save_case(tmp_path, small, subject.seed))
    assert check_node(saved.node(), backend) == wrong
    assert check_node(saved.node(), ReferenceBackend()) == ""
