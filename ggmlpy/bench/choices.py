"""Accuracy on tasks with several answers, as llama-perplexity measures it.

    HellaSwag        text, six lines a task: context, number of the right ending, four endings
    multiple choice  binary: the number of tasks and the position of each, then the tasks: a
                     question, answers with one right one, answers with several (not used)
    Winogrande       CSV: number, sentence with a `_`, two words for it, number of the right one

The answer whose tokens have the highest mean log-probability is the model's. Of more tasks than are
asked for the same ones are chosen as by llama.cpp, which draws them with a fixed seed.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ggmlpy.common.prefix import n_common
from ggmlpy.engine.generation import TokenLogprob
from ggmlpy.errors import FileError
from ggmlpy.llama import Llama

_N_LINES = 6  # of a HellaSwag task
_N_ENDINGS = 4
_MOST_ANSWERS = 100  # of a task, as in llama.cpp
_LEAST_BEHIND = 4  # tokens behind the words of Winogrande, of which then only those are scored
_Z = 1.95996398454  # of a normal distribution, 95 % of which lie within it


@dataclass(frozen=True, slots=True)
class Task:
    """A question with its answers."""

    texts: list[str]  # each answer with what is before it
    right: list[bool]
    heads: list[str] | None = None  # of Winogrande: each text up to its word


@dataclass(frozen=True, slots=True)
class Answered:
    """A task that was done."""

    means: list[float]  # log-probability of a token of each answer
    choice: int
    is_right: bool


# --- files ---


def read_hellaswag(text: str) -> list[Task]:
    """The tasks of a file. Raises FileError."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if not lines or len(lines) % _N_LINES:
        raise FileError(
            f"HellaSwag: the file has {len(lines)} lines: it must have {_N_LINES} for each task"
        )
    tasks = []
    for at in range(0, len(lines), _N_LINES):
        context, label, *endings = lines[at : at + _N_LINES]
        if label.strip() not in {str(i) for i in range(_N_ENDINGS)}:
            raise FileError(
                f"HellaSwag: line {at + 2} is {label!r:.40}: it must be the number of the right"
                f" ending, 0 to {_N_ENDINGS - 1}"
            )
        right = [i == int(label) for i in range(_N_ENDINGS)]
        tasks.append(Task([f"{context} {ending}" for ending in endings], right))
    return tasks


def read_winogrande(text: str) -> list[Task]:
    """The tasks of a file. Raises FileError."""
    tasks = []
    for n, line in enumerate(text.split("\n"), 1):
        row = _fields(line)
        if len(row) == 1 and not line.strip():
            continue
        if len(row) != 5 or "_" not in row[1] or row[4].strip() not in ("1", "2"):
            raise FileError(
                f"Winogrande: line {n} must have a number, a sentence with a _, two words and the"
                " number of the right one, 1 or 2"
            )
        before, _, behind = row[1].partition("_")
        heads = [before + word for word in row[2:4]]
        tasks.append(Task([h + behind for h in heads], [row[4].strip() == c for c in "12"], heads))
    if not tasks:
        raise FileError("Winogrande: the file has no tasks")
    return tasks


def _fields(line: str) -> list[str]:
    """The five fields of a line. Commas between quotation marks are of a field's text."""
    fields = re.findall(r'(?:^|,)((?:[^",]|"[^"]*(?:"|$))*)', line)
    fields = [*fields[:4], ",".join(fields[4:])] if len(fields) > 4 else fields
    is_quoted = len(fields) > 1 and fields[1][:1] == '"'
    return [field[1:-1] if i == 1 and is_quoted else field for i, field in enumerate(fields)]


def read_multiple_choice(raw: bytes) -> list[Task]:
    """The tasks of a file. Raises FileError."""
    reader = _Reader(raw)
    n = reader.number("tasks", len(raw) // 4)
    reader.at += 4 * n  # the positions
    return [_multiple_choice(reader, i) for i in range(n)]


def _multiple_choice(reader: _Reader, i: int) -> Task:
    question = reader.text(f"the question of task {i}")
    answers, labels = reader.answers(i)
    reader.answers(i)
    if not question or not answers or not all(answers):
        raise FileError(f"multiple choice: task {i} has an empty question or answer, or none")
    return Task([f"{question} {answer}" for answer in answers], [label == 1 for label in labels])


class _Reader:
    """Reads numbers and texts of a file of bytes. Raises FileError where they end early."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.at = 0

    def number(self, what: str, most: int) -> int:
        if self.at + 4 > len(self._raw):
            raise FileError(f"multiple choice: the file ends before the number of {what}")
        (n,) = struct.unpack_from("<I", self._raw, self.at)
        if n > most:
            raise FileError(
                f"multiple choice: the file says {n} {what} at byte {self.at}: it can have {most}"
                " at most"
            )
        self.at += 4
        return int(n)

    def text(self, what: str) -> str:
        n = self.number(f"bytes of {what}", len(self._raw) - self.at)
        if self.at + n > len(self._raw):
            raise FileError(f"multiple choice: the file ends within {what}")
        raw = self._raw[self.at : self.at + n]
        self.at += n
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise FileError(f"multiple choice: {what} is not UTF-8") from None

    def answers(self, i: int) -> tuple[list[str], list[int]]:
        n = self.number(f"answers of task {i}", _MOST_ANSWERS)
        texts = [self.text(f"an answer of task {i}") for _ in range(n)]
        return texts, [self.number(f"labels of task {i}", 2**32 - 1) for _ in range(n)]


# --- which of them ---


def choose_hellaswag(tasks: list[Task], n: int) -> list[Task]:
    """`n` tasks, at most all, in the order in which llama.cpp draws them."""
    left, draws = list(tasks), _Draws()
    return [left.pop(draws.below(len(left))) for _ in range(min(n, len(tasks)))]


def choose_others(tasks: list[Task], n: int) -> list[Task]:
    """The same for the other kinds: all in the file's order where n is 0 or as many."""
    if not 0 < n < len(tasks):
        return tasks
    left, draws, chosen = list(tasks), _Draws(), []
    for _ in range(n):
        at = draws.scaled(len(left))
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen


class _Draws:
    """Numbers of std::mt19937(1)."""

    def __init__(self) -> None:
        key = [1]
        for i in range(1, 624):
            key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + i) % 2**32)
        self._bits = np.random.MT19937()
        self._bits.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": 624},
        }

    def next(self) -> int:
        return int(self._bits.random_raw())

    def below(self, n: int) -> int:
        """As std::uniform_int_distribution of libstdc++ (Lemire's method)."""
        product = self.next() * n
        if product % 2**32 < n:
            while product % 2**32 < -n % 2**32 % n:
                product = self.next() * n
        return product >> 32

    def scaled(self, n: int) -> int:
        """As llama.cpp scales a number, in f32."""
        return int(np.float32(2**-32) * np.float32(self.next()) * np.float32(n))


# --- their scores ---


def answer(llm: Llama, tasks: Sequence[Task]) -> Iterator[Answered]:
    """Each task's answer, in their order. What its texts have in common is run once.

    Raises BadBatch for a text longer than a sequence may be, before anything runs.
    """
    texts, numbers = [], []
    for i, task in enumerate(tasks):
        texts += _scored_parts(llm, task)
        numbers += [i] * len(task.texts)
    scores = llm.score_tokens(texts, numbers)
    return _answers(tasks, scores)


def _answers(tasks: Sequence[Task], scores: Iterator[list[TokenLogprob]]) -> Iterator[Answered]:
    for task in tasks:
        means = []
        for _ in task.texts:
            values = [each.logprob for each in next(scores)]
            means.append(math.fsum(values) / len(values))
        choice = max(range(len(means)), key=means.__getitem__)
        yield Answered(means, choice, task.right[choice])


def _scored_parts(llm: Llama, task: Task) -> list[tuple[list[int], int]]:
    """The tokens of each text, and the first of them that is scored."""
    encode = llm.tokenizer.encode
    tokens = [encode(text, add_bos=True) for text in task.texts]
    shared = n_common_of(tokens)
    first = [max(1, min(shared, len(each) - 1)) for each in tokens]
    if task.heads is None:
        return list(zip(tokens, first, strict=True))
    if all(len(each) - shared >= _LEAST_BEHIND for each in tokens):  # the words are not scored
        heads = [len(encode(head, add_bos=True)) for head in task.heads]
        first = [min(n, len(each) - 1) for n, each in zip(heads, tokens, strict=True)]
    # Nor is the last token, mostly a full stop.
    return [
        (each[:-1] if len(each) - n > 1 else each, n) for each, n in zip(tokens, first, strict=True)
    ]


def n_common_of(tokens: Sequence[list[int]]) -> int:
    """The length of the prefix that all have in common."""
    return min((n_common(tokens[0], other) for other in tokens[1:]), default=len(tokens[0]))


# --- how sure the shares of right answers are ---


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share of n tasks."""
    z = _Z * _Z / n
    half = z * math.sqrt(n * (4 * share * (1 - share) + z)) / (2 * _Z)
    return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)


def share_error(share: float, n: int) -> float:
    """The standard error of a share of n tasks; NaN of one."""
    return math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else math.nan
