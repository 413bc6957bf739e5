"""Compares tokens with llama.cpp's, for every name of a pre-tokenizer, on random texts.

    LLAMA_CPP_LIB_PATH=<folder of libllama> \\
    python -m tests.tools.fuzz_tokenizers <folder of llama_cpp> [--n 60] [--names qwen2,glm4]

Needs a built llama.cpp and the sources of llama-cpp-python (its bindings). Each name gets files of
vocabularies that `tests.unit.random_texts` makes, with other files' vocabularies from `--vocab`.
Prints a row per name and file: texts, texts with other tokens, and the first of them.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import sys
import tempfile
import types
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf

from ggmlpy.gguf import GGUFFile
from ggmlpy.text.tokenizer import PRE_TOKENIZERS, Tokenizer
from tests.unit.peer_splits import PEER_SPLITS
from tests.unit.random_texts import (
    CLASSES,
    byte_pair_metadata,
    char_pair_metadata,
    invalid_texts,
    texts,
)

Metadata = dict[str, Any]


class Peer:
    """llama.cpp's tokenizer, by llama-cpp-python's bindings."""

    def __init__(self, folder: Path) -> None:
        package = types.ModuleType("llama_cpp")
        package.__path__ = [str(folder)]  # its __init__ imports what is not needed here
        sys.modules["llama_cpp"] = package
        self._lib: Any = importlib.import_module("llama_cpp.llama_cpp")
        self._silent = self._lib.llama_log_callback(lambda *_: None)
        self._lib.llama_log_set(self._silent, None)
        self._lib.llama_backend_init()
        self._model: Any = None

    def load(self, path: Path) -> None:
        self.free()
        params = self._lib.llama_model_default_params()
        params.vocab_only = True
        self._model = self._lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._vocab = self._lib.llama_model_get_vocab(self._model)

    def free(self) -> None:
        if self._model:
            self._lib.llama_model_free(self._model)
            self._model = None

    def encode(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        size = 4 * len(text) + 8
        ids = (ctypes.c_int32 * size)()
        n = self._lib.llama_tokenize(
            self._vocab, text, len(text), ids, size, add_special, parse_special
        )
        return list(ids[:n])

    def decode(self, ids: list[int], remove_special: bool, unparse_special: bool) -> bytes:
        given = (ctypes.c_int32 * len(ids))(*ids)
        size = 1 << 16
        text = ctypes.create_string_buffer(size)
        n = self._lib.llama_detokenize(
            self._vocab, given, len(ids), text, size, remove_special, unparse_special
        )
        return text.raw[:n]


def write(path: Path, metadata: Metadata) -> None:
    """Write a file that has a vocabulary only."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                listed = value.tolist() if hasattr(value, "tolist") else list(value)
                writer.add_array(key, listed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def vocabularies(files: list[Path]) -> Iterator[tuple[str, Metadata]]:
    yield "bytes", byte_pair_metadata()
    yield "chars", char_pair_metadata()
    for path in files:
        with GGUFFile.open(path) as file:
            kept = {k: v for k, v in file.metadata.items() if k.startswith("tokenizer.ggml.")}
            yield (
                path.stem.removeprefix("ggml-vocab-"),
                {k: v.tolist() if hasattr(v, "tolist") else v for k, v in kept.items()},
            )


def corpus(n: int, seed: int) -> Iterator[tuple[str, str | bytes]]:
    for kind in CLASSES:
        for text in texts(kind, n, seed):
            yield kind, text
    for raw in invalid_texts(n, seed):
        yield "invalid", raw


def compare(
    peer: Peer, ours: Tokenizer, given: Iterable[tuple[str, str | bytes]]
) -> tuple[int, Counter[str], list[str]]:
    """The number of texts, of those with other tokens by kind, and some of these."""
    n, wrong, shown = 0, Counter[str](), []
    for kind, text in given:
        raw = text if isinstance(text, bytes) else text.encode()
        n += 1
        for add, parse in ((True, True), (False, False)):
            theirs = peer.encode(raw, add, parse)
            try:
                mine: Any = ours.encode(text, add, parse)
            except Exception as error:
                mine = repr(error)
            if mine != theirs:
                wrong[kind] += 1
                shown.append(f"{kind} {raw!r}: {mine} llama.cpp: {theirs}")
                break
            their_text = peer.decode(theirs, False, parse).decode(errors="replace")
            text_of = ours.decode(theirs, parse, clean_spaces=ours.clean_spaces)
            if text_of != their_text:
                wrong[f"decoded {kind}"] += 1
                shown.append(f"decoded {kind} {theirs}: {text_of!r} llama.cpp: {their_text!r}")
                break
    return n, wrong, shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", type=Path, help="the folder llama_cpp of llama-cpp-python")
    parser.add_argument("--n", type=int, default=60, help="texts of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", default="", help="only these, with commas")
    parser.add_argument("--vocab", type=Path, action="append", default=[], help="more files")
    parser.add_argument(
        "--peer-splits",
        action="store_true",
        help="cut as llama.cpp does where it differs from the published expressions",
    )
    parser.add_argument("--show", type=int, default=1, help="differences to print for each")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    peer = Peer(args.peer)
    if args.peer_splits:
        for name, splits in PEER_SPLITS.items():
            PRE_TOKENIZERS[name] = replace(PRE_TOKENIZERS[name], splits=splits)
    names = args.names.split(",") if args.names else [*PRE_TOKENIZERS]
    agree = 0
    given = list(corpus(args.n, args.seed))
    bases = list(vocabularies(args.vocab))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        for name in names:
            wrong_of_name = 0
            for base, metadata in bases:
                if PRE_TOKENIZERS[name].byte_level == (base == "chars"):
                    continue
                metadata = metadata | {"tokenizer.ggml.pre": name}
                if name == "whitespace":  # with the model "gpt2" a space aborts llama.cpp
                    metadata["tokenizer.ggml.model"] = "whitespace"
                write(path, metadata)
                peer.load(path)
                n, wrong, shown = compare(peer, Tokenizer.from_gguf(path), given)
                wrong_of_name += sum(wrong.values())
                kinds = " ".join(f"{kind}:{count}" for kind, count in wrong.items())
                print(f"{name:26} {base:10} {n:6} {sum(wrong.values()):6}  {kinds}", flush=True)
                for line in shown[: args.show]:
                    print(f"    {line[:400]}")
            agree += not wrong_of_name
    peer.free()
    print(f"{agree} of {len(names)} names agree on {len(given)} texts")


if __name__ == "__main__":
    main()
