"""Tokenizer: text to tokens and back, with the vocabulary of a GGUF file."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any, Protocol

from ggmlpy.common.arguments import kind_of
from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError, TokenizerError
from ggmlpy.gguf import GGUFFile
from ggmlpy.text.tokenizer.bpe import BytePairs, spell_byte_level, spell_plain
from ggmlpy.text.tokenizer.escapes import byte_token, unescaped
from ggmlpy.text.tokenizer.keys import Keys
from ggmlpy.text.tokenizer.partition import Partition
from ggmlpy.text.tokenizer.plamo2 import LeastCost
from ggmlpy.text.tokenizer.pre_tokenizers import PreTokenizer, find_pre_tokenizer
from ggmlpy.text.tokenizer.rwkv import LongestBytes, spell_escaped
from ggmlpy.text.tokenizer.segments import KMER_MARK, HybridDna, WhitespaceWords
from ggmlpy.text.tokenizer.special import TokenType
from ggmlpy.text.tokenizer.spm import SentencePieces
from ggmlpy.text.tokenizer.stream import StreamDecoder
from ggmlpy.text.tokenizer.ugm import Unigrams
from ggmlpy.text.tokenizer.vocabulary import TokenizerWarning, Vocabulary
from ggmlpy.text.tokenizer.wpm import WordPieces


class Encoder(Protocol):
    """Encodes plain text by a kind of vocabulary."""

    raw_bytes: bool
    """Whether `encode` takes bytes that are not UTF-8, as surrogates ("surrogateescape")."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of one value of `tokenizer.ggml.model`."""

    name: str
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool | None = None
    """Whether a text is encoded with a space before it; None if files cannot ask for that."""
    marks_texts: bool = True
    """Whether BOS and EOS can be added."""
    has_scores: bool = False
    default_ids: Mapping[str, int] = field(default_factory=dict)


SPM = Kind(
    "spm",
    add_bos=True,
    add_space_prefix=True,
    has_scores=True,
    default_ids={"unk": 0, "bos": 1, "eos": 2},
)
BPE = Kind("bpe")
WPM = Kind(
    "wpm",
    add_bos=True,
    add_eos=True,
    default_ids={"pad": 0, "unk": 100, "bos": 101, "sep": 102, "mask": 103},
)
UGM = Kind(
    "ugm",
    add_eos=True,
    add_space_prefix=False,
    has_scores=True,
    default_ids={"pad": 0, "eos": 1, "unk": 2},
)
RWKV = Kind("rwkv", marks_texts=False)
PLAMO2 = Kind(
    "plamo2",
    marks_texts=False,
    has_scores=True,
    default_ids={"unk": 0, "bos": 1, "eos": 2, "pad": 3},
)
KINDS = {
    "llama": SPM,
    "gpt2": BPE,
    "gemma4": BPE,
    "bert": WPM,
    "whitespace": BPE,
    "hybriddna": BPE,
    "t5": UGM,
    "rwkv": RWKV,
    "plamo2": PLAMO2,
}
"""The supported values of `tokenizer.ggml.model`."""

_UNSUPPORTED = {"no_vocab": "none"}  # other names

_TYPES = frozenset(map(int, TokenType))


class Tokenizer:
    """The tokenizer of a model.

    Creating one is cheap: the vocabulary is read, and its tables are built, at the first use. A
    file with an unsupported kind of tokenizer, or without one, can be opened; methods that need it
    raise TokenizerError.
    """

    def __init__(self, metadata: Mapping[str, Any], name: str = "") -> None:
        """`name` is the file's, for messages. Raises TokenizerError with the key that is wrong."""
        keys = Keys(metadata, f"{name}: " if name else "")
        self._model = keys.text("model", "none")
        kind = KINDS.get(self._model) or Kind(_UNSUPPORTED.get(self._model, self._model))
        self.kind = kind.name
        """"spm", "bpe", "wpm", "ugm", "rwkv", "plamo2", "none", or an unsupported kind's."""
        self.pre = "gemma4" if self._model == "gemma4" else keys.optional_text("pre")
        """The file's name for how a BPE vocabulary splits words."""
        self.vocab = Vocabulary(keys, kind.default_ids)
        self.n_vocab = self.vocab.n_vocab
        pre = find_pre_tokenizer(self.pre, keys.where) if kind is BPE else PreTokenizer(())
        self._pre_tokenizer = pre
        self._byte_level = kind is BPE and pre.byte_level
        self._spaces_escaped = kind is not PLAMO2 and not self._byte_level and pre.escape_spaces
        self.add_bos = pre.always_bos or keys.flag("add_bos_token", kind.add_bos or pre.add_bos)
        self.add_eos = keys.flag("add_eos_token", kind.add_eos)
        if kind is WPM:  # always adds CLS and SEP
            self.add_bos = self.add_eos = True
        if not kind.marks_texts:  # llama.cpp adds neither, whatever the file says
            self.add_bos = self.add_eos = False
        prefix = kind.add_space_prefix
        self.add_space_prefix = prefix is not None and keys.flag("add_space_prefix", prefix)
        self.clean_spaces = kind is WPM or (kind is BPE and pre.clean_spaces)
        """Whether llama.cpp's `llama_detokenize` removes spaces before signs and contractions."""
        self._end_id = self.vocab.declared_ids.get("sep" if kind is WPM else "eos")
        if self._model in KINDS:
            self._check_complete()

    @classmethod
    def from_gguf(cls, path: str | bytes | PathLike[str]) -> Tokenizer:
        """The tokenizer of the GGUF file at `path`, which stays mapped as long as needed.

        Raises what `GGUFFile.open` raises, and TokenizerError for a damaged vocabulary.
        """
        file = GGUFFile.open(path)
        return cls(file.metadata, file.name)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], name: str = "") -> Tokenizer:
        """The tokenizer that `metadata` describes; `name` is the file's, for messages.

        `metadata` may be any mapping, with lists or numpy arrays. A GGUFFile must stay open.
        """
        return cls(metadata, name)

    def prepare(self) -> None:
        """Build the tables that the first text needs. Does nothing if the vocabulary cannot encode.

        The temporary memory (40 MB for Llama 3) is then free before other memory is allocated.
        """
        try:
            self.encode("a")
        except TokenizerError:
            return  # raised again by the first use

    def encode(self, text: str | bytes, add_bos: bool = False, special: bool = False) -> list[int]:
        """The tokens of `text`, or of its bytes in UTF-8.

        `add_bos` adds BOS at the beginning and EOS at the end, each if the file asks for it
        (`self.add_bos`, `self.add_eos`; WPM: CLS and SEP). `special` parses control tokens such as
        "<|im_end|>" in the text; without it they are encoded as text.

        Bytes that are not UTF-8 become byte tokens in SPM vocabularies and tokens as any others in
        RWKV's, else each becomes U+FFFD.
        Bytes and characters for which a BPE vocabulary has no token are left out.

        Raises TokenizerError for an unsupported kind, a damaged vocabulary, and a string that is
        not Unicode (lone surrogates).
        """
        self._require_text()
        if isinstance(text, bytes):
            text = text.decode(errors="surrogateescape")
        else:
            _check_unicode(text)
        ids = self._encode_parts(text, special)
        if not add_bos:
            return ids
        if self.add_bos and self.bos_id is not None:
            if ids[:1] == [self.bos_id]:
                warnings.warn(
                    "the text begins with BOS and a second one is added: leave out one of them",
                    TokenizerWarning,
                    stacklevel=2,
                )
            ids.insert(0, self.bos_id)
        if self.add_eos and self._end_id is not None:
            ids.append(self._end_id)
        return ids

    def encode_chat(self, prompt: str) -> list[int]:
        """The tokens of a prompt that a chat template rendered, with special tokens parsed.

        As llama-server does, BOS is added if the file asks for it and the template wrote none.
        """
        ids = self.encode(prompt, special=True)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_part(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text that stands within another one: SPM puts no space before it.

        Raises TokenizerError as `encode`.
        """
        self._require_text()
        _check_unicode(text)
        return self._encode_parts(text, special, start=False)

    def decode(
        self,
        ids: Iterable[int],
        special: bool = False,
        *,
        start: bool = True,
        clean_spaces: bool | None = None,
    ) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD.

        special       include control tokens
        start         the tokens begin a text: the space that SPM puts before a text (and WPM before
                      every word) is removed. As in llama.cpp it stays after BOS, shown or not.
        clean_spaces  remove the spaces before signs and contractions ("a ?", "it 's"); by default
                      only for WPM, whose tokens do not say where there was one. With the
                      tokenizer's `clean_spaces` the text is that of `llama_detokenize`.
        """
        stream = self.stream(special, start=start, clean_spaces=clean_spaces)
        return stream.feed(b"".join(map(stream.spelt, ids)), final=True)

    def decode_prompt(self, ids: Sequence[int], special: bool = False) -> str:
        """The text that `encode(text, add_bos=True)` made `ids` of.

        As `decode`, but without the space that SPM puts after a BOS that is not shown.
        """
        hidden = not special and len(ids) > 0 and ids[0] == self.bos_id
        return self.decode(ids[1:] if hidden else ids, special)

    def stream(
        self,
        special: bool = False,
        *,
        start: bool = True,
        clean_spaces: bool | None = None,
        shown: Container[int] = (),
    ) -> StreamDecoder:
        """A decoder for tokens one by one, which returns complete characters only.

        Use `start=False` for tokens that continue a text, such as the answer to a prompt.
        """
        self._require_text()
        words_only = self.kind == WPM.name
        return StreamDecoder(
            lambda id: self.token_bytes(id, special or id in shown),
            strip_token=start and self.add_space_prefix,
            strip_text=start and words_only,
            clean_spaces=words_only if clean_spaces is None else clean_spaces,
        )

    def token_bytes(self, id: int, special: bool = False) -> bytes:
        """The bytes of a token; empty for a control token unless `special`."""
        self._require_text()
        text, type = self.text(id), self.vocab.types[id]
        if type in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
            return text.encode(errors="surrogateescape") if special else b""
        if self.kind == RWKV.name:
            return spell_escaped(text, self.vocab.keys)
        if type == TokenType.BYTE and (byte := byte_token(text)):
            return byte
        if self._model == "hybriddna":
            text = text.removesuffix(KMER_MARK)
        if self._byte_level and type != TokenType.USER_DEFINED:
            return spell_byte_level(text)
        return spell_plain(text) if self._spaces_escaped else text.encode(errors="surrogateescape")

    def text(self, id: int) -> str:
        """The token as stored in the vocabulary: "▁the", "Ġthe", "<0x0A>"."""
        return self.vocab.texts[self._checked(id)]

    def token_type(self, id: int) -> TokenType:
        """The token's type in the file, but CONTROL for a known end-of-turn text."""
        type = self.vocab.types[self._checked(id)]
        return TokenType(type) if type in _TYPES else TokenType.UNDEFINED

    @property
    def bos_id(self) -> int | None:
        """Beginning of a text (WPM: CLS)."""
        return self.vocab.declared_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """End of a text."""
        return self.vocab.declared_ids.get("eos")

    @property
    def eot_id(self) -> int | None:
        """End of a turn in a conversation, declared or recognised by its text."""
        return self.special_ids.get("eot")

    @property
    def unk_id(self) -> int | None:
        """The unknown token, for text without a token."""
        return self.vocab.declared_ids.get("unk")

    @property
    def pad_id(self) -> int | None:
        return self.vocab.declared_ids.get("pad")

    @property
    def special_ids(self) -> Mapping[str, int]:
        """All special tokens by name: "bos", "eos", "eot", "sep", "mask", "fim_pre", …"""
        return self.vocab.special.ids

    @property
    def eog_ids(self) -> frozenset[int]:
        """The tokens that end generation: EOS, EOT and others recognised by their text."""
        return self.vocab.special.eog_ids

    @property
    def control_ids(self) -> frozenset[int]:
        """The tokens that stand in no text unless it is decoded with `special`."""
        types = self.vocab.types
        return frozenset(id for id, type in enumerate(types) if type == TokenType.CONTROL)

    def __repr__(self) -> str:
        pre = f", pre={self.pre!r}" if self.kind == BPE.name else ""
        return f"Tokenizer({self.kind}{pre}, {self.n_vocab} tokens)"

    @cached_property
    def _encoder(self) -> Encoder:
        self.vocab.check_texts()
        if self.kind == SPM.name:
            return SentencePieces(self.vocab)
        if self.kind == WPM.name:
            return WordPieces(self.vocab)
        if self.kind == UGM.name:
            return Unigrams(self.vocab, self.add_space_prefix)
        if self.kind == RWKV.name:
            return LongestBytes(self.vocab)
        if self.kind == PLAMO2.name:
            return LeastCost(self.vocab)
        pairs = BytePairs(self.vocab, self._pre_tokenizer)
        if self._model == "whitespace":
            return WhitespaceWords(self.vocab, pairs)
        return HybridDna(self.vocab, pairs) if self._model == "hybriddna" else pairs

    @cached_property
    def _partition(self) -> Partition:
        return Partition(self.vocab, self.pre)

    def _encode_parts(self, text: str, special: bool, *, start: bool = True) -> list[int]:
        ids: list[int] = []
        encoder = self._encoder
        after_special = start
        for part in self._partition.split(text, special):
            if isinstance(part, int):
                ids.append(part)
            else:
                part = part if encoder.raw_bytes else unescaped(part)
                # UGM adds the space while it normalises, and at each part.
                spaced = self.kind == SPM.name and self.add_space_prefix and after_special
                ids += encoder.encode(" " + part if spaced else part)
            after_special = isinstance(part, int)
        return ids

    def _check_complete(self) -> None:
        """Raise TokenizerError if something is missing that encoding needs."""
        keys = self.vocab.keys
        if not self.vocab.has_tokens:
            raise keys.error("tokens", "is missing or empty")
        if KINDS[self._model].has_scores and not self.vocab.has_scores:
            raise keys.error("scores", "is missing")
        if self.add_bos and self.bos_id is None:
            raise keys.error("bos_token_id", "is missing, but tokenizer.ggml.add_bos_token is true")
        if self.add_eos and self._end_id is None:
            key = "seperator_token_id" if self.kind == WPM.name else "eos_token_id"
            raise keys.error(key, "is missing, but tokenizer.ggml.add_eos_token is true")

    def _require_text(self) -> None:
        if self._model in KINDS:
            return
        if self.kind == "none":
            raise TokenizerError(
                f"{self.vocab.keys.where}the file has no tokenizer: Context.encode and decode,"
                " Llama.logits and Llama.embed take tokens; `ggmlpy bench -m` needs none"
            )
        raise TokenizerError(
            f"{self.vocab.keys.where}tokenizer.ggml.model is {quoted(self._model)}: it must be "
            f"{', '.join(KINDS)} to encode or decode text"
        )

    def _checked(self, id: int) -> int:
        if not self.vocab.has_tokens:
            raise TokenizerError(f"{self.vocab.keys.where}the file has no vocabulary")
        try:
            is_known = 0 <= operator.index(id) < self.n_vocab
        except TypeError:
            raise ArgumentError(f"token id {id!r:.60}: it must be an integer") from None
        if is_known:
            return id
        raise TokenizerError(
            f"{self.vocab.keys.where}token {id} is outside the vocabulary of {self.n_vocab} tokens"
        )


def _check_unicode(text: str) -> None:
    if not isinstance(text, str):
        raise ArgumentError(f"the text is {kind_of(text)}: it must be a string or bytes")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text is not Unicode: {text[error.start]!r} at {error.start} is half of a pair"
        ) from None
