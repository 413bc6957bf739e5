"""The prompt of a reranker: a query and a document, as llama-server puts them together."""

from __future__ import annotations

import re

from ggmlpy.errors import TokenizerError
from ggmlpy.gguf import Metadata
from ggmlpy.text.tokenizer import Tokenizer

_TEMPLATE = "tokenizer.chat_template.rerank"
_WITH_SEP = frozenset({"jina-v1-en", "jina-v2-code", "roberta-bpe"})  # pre-tokenizers


def pair_tokens(
    tokenizer: Tokenizer, metadata: Metadata, query: str | bytes, document: str | bytes
) -> list[int]:
    """The tokens of a query and a document.

    Where the file has a chat template "rerank", that with both filled in; else BOS, query, EOS,
    SEP, document, EOS, of which those stand that the vocabulary asks for. Raises TokenizerError.
    """
    query, document = _text(query), _text(document)
    template = metadata.str(_TEMPLATE, "")
    if template:
        filled = {"{query}": query, "{document}": document}
        text = re.sub(r"\{query\}|\{document\}", lambda found: filled[found[0]], template)
        return tokenizer.encode(text, add_bos=True, special=True)
    is_wpm = tokenizer.kind == "wpm"
    sep = tokenizer.special_ids.get("sep")
    end = tokenizer.eos_id if tokenizer.eos_id is not None else sep
    # Single texts of WPM always end in SEP; pairs have it between them.
    add_end = metadata.bool("tokenizer.ggml.add_eos_token", False) if is_wpm else tokenizer.add_eos
    add_sep = metadata.bool("tokenizer.ggml.add_sep_token", is_wpm or tokenizer.pre in _WITH_SEP)
    return [
        *_asked(tokenizer.add_bos, tokenizer.bos_id, "bos"),
        *tokenizer.encode(query),
        *_asked(add_end, end, "eos"),
        *_asked(add_sep, sep, "seperator"),
        *tokenizer.encode(document),
        *_asked(add_end, end, "eos"),
    ]


def _text(given: str | bytes) -> str:
    return given.decode("utf-8", "surrogateescape") if isinstance(given, bytes) else given


def _asked(asked: bool, token: int | None, name: str) -> list[int]:
    """A token if the vocabulary asks for it."""
    if not asked:
        return []
    if token is None:
        raise TokenizerError(f"pairs of texts need tokenizer.ggml.{name}_token_id: it is missing")
    return [token]
