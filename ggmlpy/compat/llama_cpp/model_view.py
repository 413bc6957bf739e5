"""`Llama._model`: what scripts ask of a model file beside its text."""

from __future__ import annotations

from ggmlpy.compat.llama_cpp import constants
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.metadata import Metadata, Value
from ggmlpy.text.tokenizer import Tokenizer

_KINDS = {
    "spm": constants.LLAMA_VOCAB_TYPE_SPM,
    "bpe": constants.LLAMA_VOCAB_TYPE_BPE,
    "wpm": constants.LLAMA_VOCAB_TYPE_WPM,
    "ugm": constants.LLAMA_VOCAB_TYPE_UGM,
    "rwkv": constants.LLAMA_VOCAB_TYPE_RWKV,
    "plamo2": constants.LLAMA_VOCAB_TYPE_PLAMO2,
}


class ModelView:
    """The vocabulary and metadata of a file, with -1 for tokens that it does not have."""

    def __init__(self, file: GGUFFile, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._metadata = metadata_texts(file.metadata)
        architecture = self._metadata.get("general.architecture", "")
        self._n_ctx_train = int(self._metadata.get(f"{architecture}.context_length", 0))
        self._n_embd = int(self._metadata.get(f"{architecture}.embedding_length", 0))
        self._n_params = sum(tensor.n_elements for tensor in file.tensors.values())
        self._n_bytes = sum(tensor.n_bytes for tensor in file.tensors.values())

    def metadata(self) -> dict[str, str]:
        """The values of the file as llama.cpp writes them, without arrays."""
        return dict(self._metadata)

    def desc(self) -> str:
        """The architecture and the model's name."""
        names = ("general.architecture", "general.size_label", "general.name")
        return " ".join(self._metadata[name] for name in names if name in self._metadata)

    def size(self) -> int:
        """Bytes of all tensors."""
        return self._n_bytes

    def n_params(self) -> int:
        """Elements of all tensors."""
        return self._n_params

    def n_vocab(self) -> int:
        return self._tokenizer.n_vocab

    def n_ctx_train(self) -> int:
        """Tokens of the sequences that the model was trained with."""
        return self._n_ctx_train

    def n_embd(self) -> int:
        return self._n_embd

    def vocab_type(self) -> int:
        """One of LLAMA_VOCAB_TYPE_…"""
        return _KINDS.get(self._tokenizer.kind, constants.LLAMA_VOCAB_TYPE_NONE)

    # --- tokens ---

    def token_get_text(self, token: int) -> str:
        """The token as stored in the vocabulary."""
        return self._tokenizer.text(token)

    def token_bos(self) -> int:
        return self._special("bos")

    token_cls = token_bos

    def token_eos(self) -> int:
        return self._special("eos")

    def token_eot(self) -> int:
        return self._special("eot")

    def token_sep(self) -> int:
        return self._special("sep")

    def token_prefix(self) -> int:
        """The token before what precedes a gap in a text."""
        return self._special("fim_pre")

    def token_middle(self) -> int:
        """The token behind which the gap is filled."""
        return self._special("fim_mid")

    def token_suffix(self) -> int:
        """The token before what follows the gap."""
        return self._special("fim_suf")

    def token_nl(self) -> int:
        """The token of a line break."""
        ids = self._tokenizer.encode("\n")
        return ids[-1] if ids else constants.LLAMA_TOKEN_NULL

    def _special(self, name: str) -> int:
        return self._tokenizer.special_ids.get(name, constants.LLAMA_TOKEN_NULL)

    def is_eog(self, token: int) -> bool:
        """Whether a token ends generation."""
        return token in self._tokenizer.eog_ids

    def add_bos_token(self) -> bool:
        return self._tokenizer.add_bos

    def add_eos_token(self) -> bool:
        return self._tokenizer.add_eos

    # --- texts ---

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_bos=add_bos, special=special)

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        return self._tokenizer.token_bytes(token, special)

    def detokenize(self, tokens: list[int], special: bool = False) -> bytes:
        """The bytes of tokens; after BOS without the space that SPM puts before a text."""
        text = b"".join(self._tokenizer.token_bytes(int(token), special) for token in tokens)
        begins = len(tokens) > 0 and tokens[0] == self.token_bos()
        return text[1:] if begins and text[:1] == b" " else text


def metadata_texts(metadata: Metadata) -> dict[str, str]:
    """The values that are no arrays, as texts: true, false, whole numbers, six decimals."""
    texts = {}
    for key in metadata:
        text = _text(metadata[key])
        if text is not None:
            texts[key] = text
    return texts


def _text(value: Value) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:f}"
    return str(value) if isinstance(value, int | str) else None
