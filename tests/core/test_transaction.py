from __future__ import annotations

import pytest

from ggmlpy.memory.transaction import Transaction


def test_steps_are_undone_in_reverse_order_and_once() -> None:
    done: list[int] = []
    change = Transaction()
    for i in range(3):
        change.on_failure(done.append, i)
    change.undo()
    assert done == [2, 1, 0]
    change.undo()
    assert done == [2, 1, 0]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_only_what_fails_is_undone(error: type[BaseException] | None) -> None:
    done: list[int] = []

    def change() -> None:
        with Transaction() as change:
            change.on_failure(done.append, 1)
            if error is not None:
                raise error

    if error is None:
        change()
    else:
        with pytest.raises(error):
            change()
    assert done == ([] if error is None else [1])
