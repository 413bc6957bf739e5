"""Small vocabularies, trained here on a few sentences, as the metadata of a GGUF file has them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SENTENCES = (
    "Once upon a time there was a little girl who didn't want to go to bed.",
    "She said: I'll stay up! They've told me that 12345 stars, we're told, can't all fall.",
    "The little llama wanted to talk to the other little llama, and the other one listened.",
    "Es war einmal ein kleines Mädchen; über den Bäumen schwebte ein größerer Vogel.",
    "Жила-была девочка, которая не хотела спать. \tМаленькая лама слушала.",  # noqa: RUF001
    "今日はいい天気ですね。小さなラマが話しました。 😀🦙😀🦙",
    "def f(x):\n    return x + 1\n\n\nprint(f(41))  # 42\n",
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"


def keyed(**values: Any) -> dict[str, Any]:
    """Metadata from values by what follows `tokenizer.ggml.`."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@cache
def _trained(byte_level: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Pieces in the order they were made, and the merges that made them."""
    tokenizer = Tokenizer(models.BPE())
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
        alphabet = []
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=alphabet, min_frequency=2
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tuple(pieces), tuple(" ".join(merge) for merge in model["merges"])


def bpe_metadata(**overrides: Any) -> dict[str, Any]:
    """A byte-level BPE vocabulary with three control tokens and a user-defined one."""
    pieces, merges = _trained(byte_level=True)
    controls = ["<|begin|>", "<|endoftext|>", "<|im_end|>"]
    return keyed(
        model="gpt2",
        pre="gpt-2",
        tokens=[*pieces, *controls, "<tool>"],
        token_type=[NORMAL] * len(pieces) + [CONTROL] * 3 + [USER_DEFINED],
        merges=list(merges),
        bos_token_id=len(pieces),
        eos_token_id=len(pieces) + 1,
    ) | keyed(**overrides)


def spm_metadata(**overrides: Any) -> dict[str, Any]:
    """An SPM vocabulary with byte tokens; ids 0, 1, 2 are <unk>, <s>, </s>."""
    pieces, _ = _trained(byte_level=False)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *pieces]
    return keyed(
        model="llama",
        tokens=tokens,
        token_type=np.array(
            [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces), np.int32
        ),
        scores=np.array([0.0] * 259 + [-float(i) for i in range(len(pieces))], np.float32),
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
    ) | keyed(**overrides)


WPM_TOKENS = (
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    + [f"{SPACE}{word}" for word in ("un", "play", "the", "cafe", "s", "'", ",", ".", "!", "?")]
    + [f"{SPACE}\u5929", f"{SPACE}i", f"{SPACE}it", f"{SPACE}m"]
    + ["play", "able", "ing", "s"]
)


def wpm_metadata(**overrides: Any) -> dict[str, Any]:
    """A WPM vocabulary of a few words and endings."""
    return keyed(
        model="bert",
        tokens=WPM_TOKENS,
        token_type=[CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL] + [NORMAL] * (len(WPM_TOKENS) - 5),
        padding_token_id=0,
        unknown_token_id=1,
        cls_token_id=2,
        seperator_token_id=3,
        mask_token_id=4,
    ) | keyed(**overrides)


def without(metadata: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The metadata less some keys."""
    dropped = {f"tokenizer.ggml.{key}" for key in keys}
    return {key: value for key, value in metadata.items() if key not in dropped}


def with_tokens(metadata: dict[str, Any], *added: tuple[str, int], **more: Any) -> dict[str, Any]:
    """The metadata with tokens (text, type) added at the end."""
    prefix = "tokenizer.ggml."
    tokens = [*metadata[prefix + "tokens"], *(text for text, _ in added)]
    types = [*metadata[prefix + "token_type"], *(type for _, type in added)]
    extended = keyed(tokens=tokens, token_type=types, **more)
    if prefix + "scores" in metadata:
        extended |= keyed(scores=[*metadata[prefix + "scores"], *(0.0 for _ in added)])
    return metadata | extended
