"""What `ggmlpy perplexity` shows of tasks with several answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ggmlpy.cli.show import say, write_json
from ggmlpy.errors import FileError

if TYPE_CHECKING:
    from ggmlpy.bench.choices import Answered, Task
    from ggmlpy.llama import Llama


def show_choices(
    load: Callable[[], Llama], kind: str, raw: str | bytes, n_tasks: int, as_json: bool
) -> None:
    """Run the tasks of a file, and show the accuracy after each, and at the end.

    `kind` is hellaswag, winogrande or multiple-choice, `n_tasks` the most that are run.
    """
    from ggmlpy.bench import choices

    tasks = tasks_of(kind, raw)
    n_all = len(tasks)
    choose = choices.choose_hellaswag if kind == "hellaswag" else choices.choose_others
    tasks = choose(tasks, n_tasks)
    llm = load()
    say(f"{kind}: {len(tasks)} of {n_all} tasks")
    if not as_json and kind != "winogrande":
        print("\ntask\tacc_norm" + "\t95% confidence interval" * (kind == "hellaswag"))
    n_right = 0
    for n, answered in enumerate(choices.answer(llm, tasks), 1):
        n_right += answered.is_right
        if not as_json:
            _show(kind, tasks[n - 1], answered, n, n_right)
    share, n = n_right / len(tasks), len(tasks)
    error = choices.share_error(share, n)
    chance = n / sum(len(task.texts) for task in tasks)
    low, high = choices.wilson(share, n)
    if as_json:
        found = {"accuracy": share, "accuracy_error": error, "interval": [low, high]}
        write_json(
            {"model": Path(llm.model_path).name, "kind": kind, "n_tasks": n, "chance": chance}
            | found
        )
        return
    print(f"\nFinal result: {100 * share:.4f} +/- {100 * error:.4f}")
    if kind == "multiple-choice":
        print(f"Random chance: {100 * chance:.4f} +/- {100 * choices.share_error(chance, n):.4f}")


def tasks_of(kind: str, raw: str | bytes) -> list[Task]:
    """The tasks of a file. Raises FileError."""
    from ggmlpy.bench import choices

    if kind == "multiple-choice":
        if isinstance(raw, str):
            raise FileError("multiple choice: the tasks are in a binary file: give it with -bf")
        return choices.read_multiple_choice(raw)
    assert isinstance(raw, str)
    return choices.read_hellaswag(raw) if kind == "hellaswag" else choices.read_winogrande(raw)


def _show(kind: str, task: Task, answered: Answered, n: int, n_right: int) -> None:
    from ggmlpy.bench.choices import wilson

    share = n_right / n
    if kind == "hellaswag":
        low, high = wilson(share, n)
        print(f"{n}\t{100 * share:.8f}%\t[{100 * low:.4f}%, {100 * high:.4f}%]", flush=True)
    elif kind == "winogrande":
        means = "  ".join(f"{mean:10.6f}" for mean in answered.means)
        right = task.right.index(True) + 1
        print(f"{n}\t{100 * share:.4f}\t{means}  {answered.choice + 1}  {right}", flush=True)
    else:
        print(f"{n}\t{100 * share:.8f}", flush=True)
