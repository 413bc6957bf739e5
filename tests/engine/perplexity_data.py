"""A text, and tasks with answers, for `llama-perplexity` and for ours."""

from __future__ import annotations

import random
import struct

TEXT = """Once upon a time, there was a little girl named Lily. She loved to play outside in \
the park.
One day, she saw a big red ball under a tree. "Look, mom! A ball!" said Lily. Her mom smiled and
said, "You can play with it, but you have to share." Lily ran to the ball and kicked it very high.

The ball went over the fence. Lily was sad, and she started to cry. A boy came to her and asked,
"Why are you sad?" Lily told him about the ball. The boy was named Tom, and he was kind. He went
through the gate and got the ball back. "Here you are," he said. Lily was happy again. They played
together all day, and when the sun went down, they went home. They were best friends from then on.
"""

SENTENCES = [
    "Lily saw a big red ball under a tree.",
    "Her mom smiled and gave her a hug.",
    "Tom wanted to play with the ball too.",
    "The dog ran to the park and barked.",
    "They went home and ate some cake.",
    "The bird sang a song in the tree.",
    "The little girl was sad and cried.",
    "The boy said that he was sorry.",
    "They were best friends from then on.",
    "The cat slept in the warm sun all day.",
    "He put the toy back in the box.",
]


def _tasks(n_answers: int) -> list[tuple[str, list[str], int]]:
    """Context, endings, and which of them is right: the sentence that comes next."""
    rng = random.Random(n_answers)
    found = []
    for i, context in enumerate(SENTENCES[:-1]):
        others = [s for s in SENTENCES if s not in (context, SENTENCES[i + 1])]
        right = rng.randrange(n_answers)
        endings = rng.sample(others, n_answers)
        endings[right] = SENTENCES[i + 1]
        found.append((context, endings, right))
    return found


HELLASWAG = "\n".join(
    "\n".join([context, str(right), *endings]) for context, endings, right in _tasks(4)
)
WINOGRANDE = """0,Lily gave the ball to Tom because _ wanted to play with it all day.,Lily,Tom,2
1,"Tom was kind to the dog, so the _ was happy and ran to the park.",dog,table,1
2,The bird sang a song in the _ and then it went to sleep.,tree,soup,1
3,The cat slept in the warm _ because it was tired.,ball,sun,2
4,"Mom said, so that all could hear it: the _ are best friends.",shoes,kids,2
5,He put the toy back in the _ when he went home.,box,sky,1
"""


def multiple_choice_file() -> bytes:
    """As llama-perplexity reads it: two to four answers, and two that are not used."""
    tasks = []
    for i, (question, answers, right) in enumerate(_tasks(4)):
        n = max(2 + i % 3, right + 1)
        labels = [int(k == right) for k in range(n)]
        tasks.append(_text(question) + _answers(answers[:n], labels) + _answers(["a", "b"], [1, 1]))
    positions, at = [], 4 + 4 * len(tasks)
    for task in tasks:
        positions.append(at)
        at += len(task)
    return struct.pack(f"<I{len(tasks)}I", len(tasks), *positions) + b"".join(tasks)


def _text(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _answers(texts: list[str], labels: list[int]) -> bytes:
    parts = b"".join(map(_text, texts))
    return struct.pack("<I", len(texts)) + parts + struct.pack(f"<{len(labels)}i", *labels)


# By the packaged model itself, at temperature 1.
STORY = """Once upon a time, there were two good friends. Their names were Tim and Ben.

One warm afternoon, Leo and Ben found a yellow toy train near the big tree. Tim cried, "I want \
to play with it first!" Ben stamped his foot and said, "That is not fair!" They shouted at each \
other. Then Ben turned around and walked away. Now Tim had the white troubles, but it was no fun \
to play without Ben. His mommy saw that Leo was sad. She said, "All is, Ben. Let us play \
together." "I am sorry too," said Jack. "I do not want to fight." Then they played with the \
yellow toy train together. Tim and Ben were happy to have each other.

One day, a quiet bear named Dot helped her mama to make a plate of cookies. A little later, the \
cookies were gone! "Did you eat the cookies, Dot?" Mama Bear asked. Dot said, "It was not me! \
But I will find out who did it." Dot found small footprints next to the table.

Dot followed them through the hall, down the steps and into the garden. There sat a small lamb \
named Daisy, with crumbs all over her face. Daisy hung her head. "So it was you, Daisy!" said \
Daisy. Daisy wagged her tail. Mama Bear had to laugh."""
