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


def test_an_interrupted_step_is_done_again_and_the_others_too() -> None:
    """A second Ctrl-C, while the first one is being undone."""
    done: list[str] = []
    interrupts = [KeyboardInterrupt("second"), KeyboardInterrupt("third")]

    def interrupted() -> None:
        done.append("begun")
        if interrupts:
            raise interrupts.pop(0)
        done.append("complete")

    change = Transaction()
    change.on_failure(done.append, "first")
    change.on_failure(interrupted)
    change.on_failure(done.append, "last")
    with pytest.raises(KeyboardInterrupt, match="second"):
        change.undo()
    assert done == ["last", "begun", "begun", "begun", "complete", "first"]
    change.undo()
    assert len(done) == 6


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    done: list[int] = []

    def fail(text: str) -> None:
        raise OSError(text)

    def changed() -> None:
        with Transaction() as change:
            change.on_failure(done.append, 1)
            change.on_failure(fail, "later")
            change.on_failure(done.append, 2)
            change.on_failure(fail, "at first")
            raise ValueError("why it is undone")

    with pytest.raises(OSError, match="at first") as raised:
        changed()
    assert done == [2, 1]
    assert isinstance(raised.value.__context__, ValueError)
