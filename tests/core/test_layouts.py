from __future__ import annotations

import pytest

from ggmlpy.errors import ArgumentError
from ggmlpy.memory.layouts import choose_layout


def test_two_options_choose_the_layout() -> None:
    assert choose_layout(None) == "split"
    assert choose_layout(None, True) == "unified" == choose_layout("unified", True)
    assert choose_layout("paged") == "paged"
    for layout, unified, message in (
        ("pages", False, "kv_layout is 'pages': it must be one of split, unified, paged"),
        ("paged", True, 'kv_layout is "paged", but kv_unified is True'),
    ):
        with pytest.raises(ArgumentError, match=message):
            choose_layout(layout, unified)
