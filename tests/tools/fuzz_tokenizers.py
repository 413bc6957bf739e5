"""Compares tokens with llama.cpp's, for every name of a pre-tokenizer, on random texts.

    LLAMA_CPP_LIB_PATH=<folder of libllama> \\
    python -m tests.tools.fuzz_tokenizers <folder of llama_cpp> [--n 60] [--names qwen2,glm4]

Needs a built llama.cpp and the sources of llama-cpp-python (its bindings). Each name gets files of
vocabularies that `tests.unit.random_texts` makes, with other files' vocabularies from `--vocab`.
Every text is encoded with and without special tokens, and its tokens are decoded again. Prints a
row per name and vocabulary: texts, texts that differ, and the first of them.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
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
import numpy as np

from ggmlpy.gguf import GGUFFile
from ggmlpy.text.tokenizer import PRE_TOKENIZERS, Tokenizer
from tests.unit.peer_splits import PEER_SPLITS
from tests.unit.random_texts import (
    byte_pair_metadata,
    char_pair_metadata,
    corpus,
    digest,
)
from tests.unit.random_vocabularies import KINDS
from tests.unit.test_tokenizer_peer import N_RECORDED
from tests.unit.vocabularies import spm_metadata, wpm_metadata

Metadata = dict[str, Any]
_MODEL = "tokenizer.ggml.model"


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
                is_bytes = getattr(value, "dtype", None) == np.uint8
                writer.add_array(key, value.tobytes() if is_bytes else list(_listed(value)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def jobs(names: list[str], files: list[Path]) -> Iterator[tuple[str, str, Metadata]]:
    """The name of a pre-tokenizer (or a kind), of a vocabulary, and the metadata of its file."""
    bases = [(path.stem.removeprefix("ggml-vocab-"), _vocabulary(path)) for path in files]
    byte_level = [("bytes", byte_pair_metadata()), ("holes", _with_holes())]
    byte_level += [base for base in bases if base[1][_MODEL] == "gpt2"]
    for name in names:
        plain = [("chars", char_pair_metadata())]
        for base, metadata in byte_level if PRE_TOKENIZERS[name].byte_level else plain:
            metadata = metadata | {"tokenizer.ggml.pre": name}
            if name == "whitespace":  # with the model "gpt2" a space aborts llama.cpp
                metadata[_MODEL] = "whitespace"
            yield name, base, metadata
    kinds = [("spm", spm_metadata()), ("wpm", wpm_metadata(bos_token_id=2)), *KINDS.items()]
    kinds += bases
    for base, metadata in kinds:
        if metadata[_MODEL] != "gpt2":
            yield metadata[_MODEL], base, metadata


def _vocabulary(path: Path) -> Metadata:
    with GGUFFile.open(path) as file:
        kept = {k: v for k, v in file.metadata.items() if k.startswith("tokenizer.ggml.")}
        return {k: _listed(v) if hasattr(v, "tolist") else v for k, v in kept.items()}


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _with_holes() -> Metadata:
    """A byte-level vocabulary that lacks some bytes, as Falcon's does."""
    metadata = byte_pair_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    for byte in (*range(0x0B, 0x20), ord("x"), ord("="), 0xE2, 0x80, 0xC3):
        tokens[byte] = f"[hole {byte}]"
    return metadata


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
            if ours.pre == "whitespace":
                continue  # llama.cpp takes its tokens for byte-level ones: "[UNK_BYTE_0xe6…]"
            their_text = peer.decode(theirs, False, parse).decode(errors="replace")
            text_of = ours.decode(theirs, parse, clean_spaces=ours.clean_spaces)
            if ours.kind == "wpm":
                their_text = their_text.removeprefix(" ")  # llama.cpp keeps the one of every word
            if text_of != their_text:
                wrong[f"decoded {kind}"] += 1
                shown.append(f"decoded {kind} {theirs}: {text_of!r} llama.cpp: {their_text!r}")
                break
    return n, wrong, shown


def record(peer: Peer, path: Path, out: Path) -> None:
    """Write the digests that `tests/unit/test_tokenizer_peer.py` compares with."""
    recorded = {}
    for name, base, metadata in jobs([*PRE_TOKENIZERS], []):
        if base not in ("bytes", "chars", *KINDS):
            continue
        write(path, metadata)
        peer.load(path)
        by_kind: dict[str, list[list[int]]] = {}
        for kind, text in corpus(N_RECORDED):
            raw = text if isinstance(text, bytes) else text.encode()
            for flag in (True, False):
                by_kind.setdefault(kind, []).append(peer.encode(raw, flag, flag))
        recorded[base if base in KINDS else name] = " ".join(map(digest, by_kind.values()))
    out.write_text(json.dumps(recorded, indent=0) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", type=Path, help="the folder llama_cpp of llama-cpp-python")
    parser.add_argument("--n", type=int, default=60, help="texts of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", default=",".join(PRE_TOKENIZERS), help="only these")
    parser.add_argument("--vocab", type=Path, action="append", default=[], help="more files")
    parser.add_argument("--show", type=int, default=1, help="differences to print for each")
    parser.add_argument("--record", type=Path, help="write llama.cpp's digests for the tests")
    parser.add_argument(
        "--peer-splits",
        action="store_true",
        help="cut as llama.cpp does where it differs from the published expressions",
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    peer = Peer(args.peer)
    if args.peer_splits:
        for name, splits in PEER_SPLITS.items():
            PRE_TOKENIZERS[name] = replace(PRE_TOKENIZERS[name], splits=splits)
    given = list(corpus(args.n, args.seed))
    differing = dict.fromkeys(args.names.split(","), 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        if args.record:
            return record(peer, path, args.record)
        for name, base, metadata in jobs([*differing], args.vocab):
            write(path, metadata)
            peer.load(path)
            n, wrong, shown = compare(peer, Tokenizer.from_gguf(path), given)
            differing[name] = differing.get(name, 0) + wrong.total()
            kinds = " ".join(f"{kind}:{count}" for kind, count in wrong.items())
            print(f"{name:26} {base:10} {n:6} {wrong.total():6}  {kinds}", flush=True)
            for line in shown[: args.show]:
                print(f"    {line[:400]}")
    peer.free()
    agree = list(differing.values()).count(0)
    print(f"{agree} of {len(differing)} names agree on {len(given)} texts")


if __name__ == "__main__":
    main()
