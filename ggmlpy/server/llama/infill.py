"""Prompts for models that fill in the middle (FIM), in the pattern of llama-server.

    [FIM_REP] myproject [FIM_SEP] name 0, chunk 0 … [FIM_SEP] filename
    BOS [FIM_PRE] prefix, prompt [FIM_SUF] suffix [FIM_MID]

Source of the pattern with several files: arxiv.org/abs/2409.12186
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ggmlpy.server.errors import ApiError
from ggmlpy.server.fields import listed, mapping, needed, read, text
from ggmlpy.text.tokenizer import Tokenizer

_NEEDED = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
_SEPARATOR = "\n\n--- snippet ---\n\n"  # where the vocabulary has no token for it
_N_BATCH = 2048  # llama-server's n_batch, by which it cuts them
Extra = Sequence[tuple[str, str]]  # names and texts of other files


def read_extra(body: Mapping[str, Any]) -> Extra:
    """The other files of a body. Raises ApiError."""
    chunks = read(body, {"input_extra": listed(mapping)}).get("input_extra", ())
    return [
        (
            read(each, {"filename": text}, f"input_extra[{i}]").get("filename", "tmp"),
            needed(each, "text", text, f"input_extra[{i}]"),
        )
        for i, each in enumerate(chunks)
    ]


def check_infill(tokenizer: Tokenizer) -> None:
    """Raise ApiError, 501, for a vocabulary without the tokens for it."""
    missing = [name for key, name in _NEEDED.items() if key not in tokenizer.special_ids]
    if missing:
        raise ApiError(
            501, f"the model cannot fill in: it has no token for the {', the '.join(missing)}"
        )


def infill_tokens(
    tokenizer: Tokenizer,
    before: str,
    after: str,
    *,
    n_ctx_seq: int,
    prompt: str = "",
    extra: Extra = (),
    n_predict: int = -1,
) -> list[int]:
    """The tokens of a prompt. Of long texts it has what is near the middle: of 2048 tokens, or
    those of a smaller context, three quarters before it and one behind it. Of other files it has
    what the context has room for besides."""
    ids = tokenizer.special_ids
    middle = tokenizer.encode(prompt, special=True) if prompt else []
    prefix = tokenizer.encode(before) if before else []
    suffix = tokenizer.encode(after) if after else []
    n_batch = min(_N_BATCH, n_ctx_seq)
    n_prefix = min(len(prefix), 3 * (n_batch // 4))
    n_suffix = min(len(suffix), max(0, n_batch // 4 - (2 + len(middle))))
    others = _others(tokenizer, extra)
    n_others = min(len(others), max(0, n_ctx_seq - n_batch - 2 * max(n_predict, -1)))
    return [
        *others[len(others) - n_others :],
        *([tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []),
        ids["fim_pre"],
        *prefix[len(prefix) - n_prefix :],
        *middle,
        ids["fim_suf"],
        *suffix[:n_suffix],
        ids["fim_mid"],
    ]


def _others(tokenizer: Tokenizer, extra: Extra) -> list[int]:
    ids = tokenizer.special_ids
    separator = ids.get("fim_sep")
    tokens: list[int] = []
    if "fim_rep" in ids:
        tokens += [ids["fim_rep"], *tokenizer.encode("myproject\n")]
    for name, content in extra:
        if separator is None:
            tokens += tokenizer.encode(_SEPARATOR)
        else:
            tokens += [separator, *tokenizer.encode(f"{name}\n")]
        tokens += tokenizer.encode(content)
    if separator is not None:
        tokens += [separator, *tokenizer.encode("filename\n")]
    return tokens
