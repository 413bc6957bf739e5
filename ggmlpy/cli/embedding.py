"""`ggmlpy embedding`: embeddings of texts, and scores of a reranker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli import common, options
from ggmlpy.cli.adapter_options import AdapterOptions, adapter_options
from ggmlpy.cli.command import command, option
from ggmlpy.cli.escapes import unescaped
from ggmlpy.cli.options import ModelOptions
from ggmlpy.cli.show import harmless
from ggmlpy.cli.types import Whole
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.engine.embeddings import Vector
    from ggmlpy.llama import Llama

_POOLING = ["none", "mean", "cls", "last", "rank"]
_MOST_SHOWN = 16  # elements of each of several embeddings


@command
@options.model_file
@options.prompt
@options.prompt_file
@options.escape
@option(
    "pooling",
    "--pooling KIND",
    "What becomes of a text's tokens: mean, cls (the first), last, none (all are shown), rank (the"
    " scores of a reranker).",
    type=click.Choice(_POOLING),
    show_default="what the file says",
)
@option(
    "normalize",
    "--embd-normalize N",
    "-1: none, 0: largest magnitude 32760, 1: taxicab, 2: Euclidean, above: p-norm.",
    default=2,
    type=Whole(-1),
)
@option(
    "output_format",
    "--embd-output-format FORMAT",
    "array: [[…],…]; json: as OpenAI's; json+: with cosine similarities; raw: a line of numbers for"
    " each.",
    type=click.Choice(["array", "json", "json+", "raw"]),
    show_default="text",
)
@option(
    "separator",
    "--embd-separator TEXT",
    r"What separates texts; \n and \t are a newline and a tab.",
    default=r"\n",
)
@option(
    "pair_separator",
    "--cls-separator TEXT",
    "What separates query and document, for a reranker.",
    default=r"\t",
)
@options.model_options
@adapter_options
def embedding(
    model: Path | None,
    prompt: str | None,
    file: Path | None,
    escape: bool | None,
    pooling: str | None,
    normalize: int,
    output_format: str | None,
    separator: str,
    pair_separator: str,
    setup: ModelOptions,
    adapters: AdapterOptions,
) -> None:
    """Show the embeddings of texts, and how similar they are.

    Each line is a text. With the scores of a reranker it is a query and a document.

    Examples:
      ggmlpy embedding -m model.gguf -p "A cat sleeps."
      ggmlpy embedding -m model.gguf -f texts.txt --pooling mean --embd-output-format json
      ggmlpy embedding -m model.gguf -p "A cat;A dog;The sea" --embd-separator ";"
    """
    given = common.read_text(prompt, file, escape=escape)
    if given is None:
        raise click.BadParameter("There is no text: give -p, -f, or a pipe.")
    texts = given.split(_unescaped("--embd-separator", separator))
    between = _unescaped("--cls-separator", pair_separator)
    llm = common.open_model(model or packaged_model(), setup, **adapters.arguments())
    rows, is_scores = _embedded(llm, texts, pooling, normalize, between)
    decimals = 0 if normalize == 0 and not is_scores else 7
    if output_format == "raw":
        for row in rows:
            print(" ".join(f"{value:.{decimals}f}" for value in row.tolist()))
    elif output_format is not None:
        print(_as_json(rows, output_format, decimals, len(texts)))
    elif is_scores:
        _show_scores(rows)
    else:
        _show(rows, texts, normalize)


def _unescaped(name: str, text: str) -> str:
    if not text:
        raise click.BadParameter(f"{name} is empty: it must be a text.")
    return unescaped(text)


def _embedded(
    llm: Llama, texts: Sequence[str], pooling: str | None, normalize: int, between: str
) -> tuple[list[Vector], bool]:
    """The rows that are shown, and whether they are scores, which are not normalised."""
    from ggmlpy.engine.embedding_methods import Text
    from ggmlpy.engine.embeddings import Pooling, pooling_of, scaled
    from ggmlpy.text.pairs import pair_tokens

    kind = pooling_of(llm.model) if pooling is None else Pooling.named(pooling)
    if kind is Pooling.RANK:
        pairs: list[Text] = []
        for text in texts:
            query, found, document = text.partition(between)
            pair = pair_tokens(llm.tokenizer, llm.metadata, query, document) if found else text
            pairs.append(pair)
        return llm.embed(pairs, pooling="rank"), True
    found_rows = llm.embed(list(texts), pooling=kind.name.lower(), normalize=False)
    rows = [scaled(each, normalize) for each in found_rows]
    if kind is Pooling.NONE:  # of each text those of all tokens
        rows = [row for each in rows for row in each]
    return rows, False


def _show(rows: Sequence[Vector], texts: Sequence[str], normalize: int) -> None:
    """A line for each embedding, and of several texts how similar each pair is."""

    def shown(values: Any) -> str:
        return " ".join(f"{v:6.0f}" if normalize == 0 else f"{v:9.6f}" for v in values.tolist())

    if len(rows) != len(texts):  # of tokens
        for i, row in enumerate(rows):
            print(f"embedding {i}: {shown(row[:3])}  ... {shown(row[-3:])}")
        return
    for i, row in enumerate(rows):
        print(f"embedding {i}: {shown(row if len(rows) == 1 else row[:_MOST_SHOWN])}")
    if len(rows) < 2:
        return
    print("\ncosine similarity matrix:\n")
    lines = [harmless(text) if sys.stdout.isatty() else text for text in texts]
    print(" ".join(f"{line[:6]:>6}" for line in lines))
    for line, similar in zip(lines, similarities(rows), strict=True):
        print(" ".join(f"{value:6.2f}" for value in similar), line[:10])


def _show_scores(rows: Sequence[Vector]) -> None:
    for i, row in enumerate(rows):
        for label, score in enumerate(row.tolist()):
            print(f"rerank score {i}: {score:8.3f}" + f" [{label}]" * (len(row) > 1))


def similarities(rows: Sequence[Vector]) -> list[list[float]]:
    """The cosine of each pair, [n, n]; of zeros 1 with zeros, else 0."""
    import numpy as np

    x = np.stack(rows).astype(np.float64)
    norms = np.sqrt((x * x).sum(axis=1))
    products = x @ x.T
    lengths = np.outer(norms, norms)
    both = np.outer(norms == 0, norms == 0)
    cosines = np.divide(products, lengths, out=both.astype(np.float64), where=lengths > 0)
    found: list[list[float]] = cosines.tolist()
    return found


def _as_json(rows: Sequence[Vector], form: str, decimals: int, n_texts: int) -> str:
    """The text that llama-embedding writes, with few decimals."""
    lists = ["[" + ",".join(f"{v:.{decimals}f}" for v in row.tolist()) + "]" for row in rows]
    if form == "array":
        return f"[{','.join(lists)}]"
    entries = [
        f'    {{\n      "object": "embedding",\n      "index": {i},\n      "embedding": {each}\n'
        "    }"
        for i, each in enumerate(lists)
    ]
    text = '{\n  "object": "list",\n  "data": [\n' + ",\n".join(entries) + "\n  ]"
    if form == "json+" and n_texts > 1:
        lines = [", ".join(f"{v:6.2f}" for v in each) for each in similarities(rows)]
        cosines = ",\n".join(f"    [{line} ]" for line in lines)
        text += f',\n  "cosineSimilarity": [\n{cosines}\n  ]'
    return text + "\n}"
