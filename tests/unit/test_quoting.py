"""Names from files in messages."""

from __future__ import annotations

import pytest

from ggmlpy.common.quoting import quoted_list


@pytest.mark.parametrize(
    ("n", "told"),
    [
        (0, ""),
        (1, '"t0"'),
        (5, '"t0", "t1", "t2", "t3", "t4"'),
        (6, '"t0", "t1", "t2", "t3", "t4" and 1 more'),
        (40, '"t0", "t1", "t2", "t3", "t4" and 35 more'),
    ],
)
def test_the_first_of_many_names(n: int, told: str) -> None:
    assert quoted_list([f"t{i}" for i in range(n)]) == told
