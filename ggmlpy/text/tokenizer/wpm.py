"""WPM vocabularies: BERT's WordPiece, in `tokenizers`.

BERT marks the pieces that continue a word ("##ing"); GGUF marks those that begin one ("▁sing") and
stores the others without a mark. Normalisation (accents, case, CJK characters one by one) is
BERT's.
"""

from __future__ import annotations

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer.blocks import WORD_END, blocks
from ggmlpy.text.tokenizer.vocabulary import Vocabulary

_SPACE = "\u2581"
_CONTINUED = "##"
_UNKNOWN = "\0"  # never a word: the normaliser removes it
_MAX_WORD_CHARS = 100  # BERT's limit: a longer word is unknown, and takes quadratic time


class WordPieces:
    """Encodes text by a WPM vocabulary; a word that is no sequence of pieces is unknown."""

    def __init__(self, vocab: Vocabulary) -> None:
        unk = vocab.declared_ids.get("unk")
        if unk is None:
            raise TokenizerError(
                f"{vocab.keys.where}tokenizer.ggml.unknown_token_id is missing: "
                "words that are not in the vocabulary need it"
            )
        lowercase = vocab.keys.flag("normalizer.lowercase", True)
        strip_accents = vocab.keys.flag("normalizer.strip_accents", lowercase)
        words = {
            text[1:] if text.startswith(_SPACE) else _CONTINUED + text: id
            for text, id in vocab.ids.items()
        }
        words.pop("", None)  # a single ▁ is no word
        model = models.WordPiece(
            vocab={**words, _UNKNOWN: unk},
            unk_token=_UNKNOWN,
            max_input_chars_per_word=_MAX_WORD_CHARS,
            continuing_subword_prefix=_CONTINUED,
        )
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for block in blocks(text, WORD_END):
            ids += self._tokenizer.encode(block, add_special_tokens=False).ids
        return ids
