"""Records how far llama.cpp's grammars take texts: tests/grammar/llama_cpp.json.

    PYTHONPATH=LLAMA_CPP_PYTHON python -m tests.tools.record_gbnf --grammars DIR --vocab FILE

with llama-cpp-python's built package; DIR has llama.cpp's grammars, FILE is a GGUF with a
byte-level vocabulary, such as llama.cpp's ggml-vocab-gpt-2.gguf. Of each grammar some texts are
made here, by random walks in which each byte is one that the grammar allows, and some of them are
damaged.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
from importlib import import_module
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "grammar" / "llama_cpp.json"
N_WALKS = 12
N_BYTES = 40
PREFERRED = b' \n\t"{}[]()=:,.;-+*/0123456789abcdexNBO#'
_SHIFT = 256  # bytes that are no printable characters have these code points in such vocabularies


def byte_texts() -> dict[int, str]:
    """How a byte-level vocabulary spells each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {
        byte: chr(_SHIFT + i) for i, byte in enumerate(shifted)
    }


class Peer:
    """llama.cpp's grammar sampler on single bytes."""

    def __init__(self, vocab: str) -> None:
        llama_cpp = self.lib = import_module("llama_cpp")
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(vocab.encode(), params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        n = llama_cpp.llama_vocab_n_tokens(self.vocab)
        texts = {llama_cpp.llama_vocab_get_text(self.vocab, i).decode(): i for i in range(n)}
        self.ids = [texts[text] for _, text in sorted(byte_texts().items())]
        self.eos = llama_cpp.llama_vocab_eos(self.vocab)

    def start(self, grammar: str) -> Any:
        return self.lib.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")

    def allowed(self, sampler: Any) -> tuple[set[int], bool]:
        """The bytes that may come next, and whether the text may end."""
        ids = [*self.ids, self.eos]
        data = (self.lib.llama_token_data * len(ids))()
        for i, id in enumerate(ids):
            data[i].id, data[i].logit, data[i].p = id, 0.0, 0.0
        tokens = self.lib.llama_token_data_array(data, len(ids), -1, False)
        self.lib.llama_sampler_apply(sampler, ctypes.byref(tokens))
        kept = {data[i].id for i in range(len(ids)) if data[i].logit > -1e9}
        return {byte for byte, id in enumerate(self.ids) if id in kept}, self.eos in kept

    def read(self, grammar: str, text: bytes) -> tuple[int, bool]:
        """How many bytes of a text are taken, and whether it may end behind them."""
        sampler = self.start(grammar)
        for n, byte in enumerate(text):
            bytes_allowed, may_end = self.allowed(sampler)
            if byte not in bytes_allowed:
                return n, may_end
            self.lib.llama_sampler_accept(sampler, self.ids[byte])
        return len(text), self.allowed(sampler)[1]

    def walk(self, grammar: str, rng: random.Random) -> str:
        """A text of which the grammar allows each byte."""
        sampler, text = self.start(grammar), bytearray()
        while len(text) < N_BYTES or not is_text(bytes(text)):
            allowed, _ = self.allowed(sampler)
            likely = sorted(allowed & set(PREFERRED))
            if not allowed:
                break
            byte = rng.choice(likely if likely and rng.random() < 0.9 else sorted(allowed))
            self.lib.llama_sampler_accept(sampler, self.ids[byte])
            text.append(byte)
            if len(text) > 2 * N_BYTES:
                break
        return text.decode(errors="ignore")


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def damaged(text: str, rng: random.Random) -> str:
    """The text with a character left out, doubled or replaced."""
    at = rng.randrange(max(1, len(text)))
    between = rng.choice(["", text[at : at + 1] * 2, rng.choice(' \n"a1)=é')])
    return text[:at] + between + text[at + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grammars", type=Path, required=True)
    parser.add_argument("--vocab", required=True)
    options = parser.parse_args()
    peer, rng, cases = Peer(options.vocab), random.Random(0), []
    for path in sorted(options.grammars.glob("*.gbnf")):
        grammar = path.read_text("utf-8")
        texts = [peer.walk(grammar, rng) for _ in range(N_WALKS)]
        texts += [damaged(text, rng) for text in texts for _ in range(2)]
        read = [(text, *peer.read(grammar, text.encode())) for text in dict.fromkeys(texts)]
        cases.append({"name": path.stem, "grammar": grammar, "texts": read})
    OUT.write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
