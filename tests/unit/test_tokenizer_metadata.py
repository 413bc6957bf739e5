"""What a file may say wrongly, or not at all; and that opening costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ggmlpy.errors import MissingFile, TokenizerError
from ggmlpy.text.tokenizer import Tokenizer
from tests.unit.vocabularies import (
    SENTENCES,
    bpe_metadata,
    keyed,
    spm_metadata,
    with_tokens,
    without,
    wpm_metadata,
)

SPM_SIZE = len(spm_metadata()["tokenizer.ggml.tokens"])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (without(spm_metadata(), "tokens"), r"\.tokens is missing"),
        (spm_metadata(tokens=[]), r"\.scores|\.tokens is missing or empty"),
        (spm_metadata(tokens="abc"), r"\.tokens is 'abc', must be an array"),
        (without(spm_metadata(), "scores"), r"\.scores is missing"),
        (spm_metadata(scores=[0.0] * 5), rf"\.scores has 5 elements for {SPM_SIZE} tokens"),
        (spm_metadata(token_type=[1]), rf"\.token_type has 1 elements for {SPM_SIZE} tokens"),
        (spm_metadata(bos_token_id=70_000), rf"\.bos_token_id is 70000, .* has {SPM_SIZE} tokens"),
        (spm_metadata(eos_token_id=SPM_SIZE), rf"\.eos_token_id is {SPM_SIZE}, "),
        (spm_metadata(eos_token_id=-5), r"\.eos_token_id is -5, "),
        (spm_metadata(bos_token_id="<s>"), r"\.bos_token_id is '<s>', must be a token id"),
        (spm_metadata(bos_token_id=True), r"\.bos_token_id is True, must be a token id"),
        (spm_metadata(bos_token_id=0xFFFFFFFF), r"\.bos_token_id is missing, but .*add_bos_token"),
        (spm_metadata(add_bos_token="yes"), r"\.add_bos_token is 'yes', must be true or false"),
        (spm_metadata(add_space_prefix=3), r"\.add_space_prefix is 3, must be true or false"),
        (spm_metadata(model=7), r"\.model is 7, must be a string"),
        (bpe_metadata(pre=7), r"\.pre is 7, must be a string"),
        (
            without(bpe_metadata(add_eos_token=True), "eos_token_id"),
            r"\.eos_token_id is missing, but .*add_eos_token",
        ),
        (without(wpm_metadata(), "cls_token_id"), r"\.bos_token_id is missing"),
        (without(wpm_metadata(), "seperator_token_id"), r"\.seperator_token_id is missing"),
    ],
)
def test_damage_seen_at_opening(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=rf"^m\.gguf: tokenizer\.ggml{message}"):
        Tokenizer.from_metadata(metadata, name="m.gguf")


def test_scores_and_types_beyond_the_tokens_are_left_out() -> None:
    exact = spm_metadata()
    longer = {
        key: [*exact["tokenizer.ggml." + key], *surplus]
        for key, surplus in (("scores", [float("nan"), 9.0]), ("token_type", [4]))
    }
    wanted, found = Tokenizer.from_metadata(exact), Tokenizer.from_metadata(spm_metadata(**longer))
    assert found.vocab.scores == wanted.vocab.scores
    assert found.vocab.types == wanted.vocab.types
    assert len(found.vocab.types) == SPM_SIZE
    for text in SENTENCES:
        assert found.encode(text, special=True) == wanted.encode(text, special=True)


MERGES = bpe_metadata()["tokenizer.ggml.merges"]
TOKENS = bpe_metadata()["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (without(bpe_metadata(), "merges"), r"\.merges is missing"),
        (bpe_metadata(merges=[*MERGES, "a"]), rf'\.merges holds "a" at {len(MERGES)}, must be two'),
        (bpe_metadata(merges=["a b c", *MERGES]), r'\.merges holds "a b c" at 0, must be two'),
        (bpe_metadata(merges=["a b c", "d", *MERGES]), r'\.merges holds "a b c" at 0, must be two'),
        (bpe_metadata(merges=["zzq a"]), r'\.merges holds "zzq a" at 0: "zzq" is no token'),
        (bpe_metadata(merges=["a zzq"]), r'\.merges holds "a zzq" at 0: "zzq" is no token'),
        (bpe_metadata(merges=["z q"]), r'\.merges holds "z q" at 0: "zq" is no token'),
        (bpe_metadata(merges=["a zzq", "z q"]), r'\.merges holds "a zzq" at 0: "zzq" is no token'),
        (bpe_metadata(merges=[3]), r"\.merges holds 3 at 0, must hold strings"),
        (bpe_metadata(tokens=[*TOKENS[:-1], 5]), rf"\.tokens holds 5 at {len(TOKENS) - 1}"),
        (
            bpe_metadata(tokens=[*TOKENS[:-1], "a"]),
            rf'\.tokens has "a" twice, at \d+ and {len(TOKENS) - 1}',
        ),
        (
            with_tokens(spm_metadata(), ("<s>", 1)),
            rf'\.tokens has "<s>" twice, at 1 and {SPM_SIZE}',
        ),
        (
            bpe_metadata(tokens=[*TOKENS[:-1], "\udce9t\udce9"]),  # Latin-1, as a GGUFFile gives it
            rf'\.tokens holds "\\udce9t\\udce9" at {len(TOKENS) - 1}, not UTF-8',
        ),
        (bpe_metadata(token_type=["x"] * len(TOKENS)), r"\.token_type must hold numbers"),
        (spm_metadata(scores=["x"] * SPM_SIZE), r"\.scores must hold numbers"),
        (
            spm_metadata(scores=[0.0] * 300 + [float("nan")] * (SPM_SIZE - 300)),
            r"\.scores is not a number at 300",
        ),
        (wpm_metadata(**{"normalizer.lowercase": "x"}), r"\.normalizer\.lowercase is 'x'"),
    ],
)
def test_damage_seen_when_text_is_asked_for(metadata: dict[str, Any], message: str) -> None:
    tokenizer = Tokenizer.from_metadata(metadata, name="m.gguf")
    with pytest.raises(TokenizerError, match=rf"^m\.gguf: tokenizer\.ggml{message}"):
        tokenizer.encode("a")


def test_preparing_builds_what_text_needs_and_is_silent_where_there_is_none() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    tokenizer.prepare()
    assert "_encoder" in vars(tokenizer)
    assert "_partition" in vars(tokenizer)
    broken = Tokenizer.from_metadata(bpe_metadata(merges=["z q"]), name="m.gguf")
    Tokenizer.from_metadata({}).prepare()
    broken.prepare()
    with pytest.raises(TokenizerError, match=r'^m\.gguf: .*"zq" is no token'):
        broken.encode("a")


@pytest.mark.parametrize("model", ["test", "plamo3"])
def test_a_kind_that_is_not_supported(model: str) -> None:
    metadata = keyed(model=model, tokens=["a", "b", "<|im_end|>"], eos_token_id=1)
    tokenizer = Tokenizer.from_metadata(metadata, name="m.gguf")
    assert (tokenizer.kind, tokenizer.n_vocab, tokenizer.eos_id) == (model, 3, 1)
    assert tokenizer.text(0) == "a"
    assert tokenizer.eog_ids == {1, 2}
    message = rf'^m\.gguf: tokenizer\.ggml\.model is "{model}".*llama, gpt2, gemma4, bert'
    for use in (
        lambda: tokenizer.encode("a"),
        lambda: tokenizer.decode([0]),
        lambda: tokenizer.token_bytes(0),
        lambda: tokenizer.stream(),
    ):
        with pytest.raises(TokenizerError, match=message):
            use()


@pytest.mark.parametrize("model", ["none", "no_vocab", None])
def test_no_vocabulary(model: str | None) -> None:
    metadata = {"general.architecture": "llama", "llama.vocab_size": 77}
    tokenizer = Tokenizer.from_metadata(metadata | (keyed(model=model) if model else {}))
    assert (tokenizer.kind, tokenizer.n_vocab, tokenizer.bos_id) == ("none", 77, None)
    assert tokenizer.eog_ids == frozenset()
    with pytest.raises(TokenizerError, match="the file has no tokenizer: "):
        tokenizer.encode("")
    with pytest.raises(TokenizerError, match="the file has no vocabulary"):
        tokenizer.text(0)
    assert Tokenizer.from_metadata({}).n_vocab == 0


@pytest.mark.parametrize("metadata", [spm_metadata(), bpe_metadata(), wpm_metadata()])
def test_lone_surrogates_are_refused(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    with pytest.raises(TokenizerError, match=r"'\\ud800' at 2 is half of a pair"):
        tokenizer.encode("ab\ud800")


def test_empty_tokens_are_never_chosen() -> None:
    tokenizer = Tokenizer.from_metadata(with_tokens(bpe_metadata(), ("", 1), ("", 1), ("", 4)))
    assert tokenizer.decode(tokenizer.encode(SENTENCES[0])) == SENTENCES[0]
    assert tokenizer.decode([tokenizer.n_vocab - 1]) == ""


class Unread(Sequence[Any]):
    """An array that can be counted but not read."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("opening must not read arrays")


@pytest.mark.parametrize("metadata", [spm_metadata(), bpe_metadata(), wpm_metadata()])
def test_opening_reads_no_array(metadata: dict[str, Any]) -> None:
    unread = {
        key: Unread(len(value)) if isinstance(value, list | np.ndarray) else value
        for key, value in metadata.items()
    }
    tokenizer = Tokenizer.from_metadata(unread)
    assert tokenizer.n_vocab == len(metadata["tokenizer.ggml.tokens"])
    assert tokenizer.bos_id == Tokenizer.from_metadata(metadata).bos_id
    with pytest.raises(AssertionError):
        tokenizer.encode("a")


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value.tolist() if isinstance(value, np.ndarray) else value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.parametrize("metadata", [spm_metadata(), bpe_metadata(), wpm_metadata()])
def test_from_a_file(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = tmp_path / "vocab.gguf"
    write_gguf(path, metadata)
    from_file, from_memory = Tokenizer.from_gguf(path), Tokenizer.from_metadata(metadata)
    for text in SENTENCES:
        ids = from_file.encode(text, add_bos=True, special=True)
        assert ids == from_memory.encode(text, add_bos=True, special=True)
        assert from_file.decode(ids) == from_memory.decode(ids)
    assert from_file.eog_ids == from_memory.eog_ids
    assert repr(from_file) == repr(from_memory)


def test_messages_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        Tokenizer.from_gguf(tmp_path / "absent.gguf")
    write_gguf(tmp_path / "bad.gguf", spm_metadata(bos_token_id=70_000))
    with pytest.raises(TokenizerError, match=r"^bad\.gguf: tokenizer\.ggml\.bos_token_id is 70000"):
        Tokenizer.from_gguf(tmp_path / "bad.gguf")
