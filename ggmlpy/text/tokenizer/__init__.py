"""Tokenizers, by the vocabulary that a GGUF file carries.

keys.py            the metadata's values, typed
special.py         special tokens by key and by text
vocabulary.py      texts, types, scores, special tokens
pre_tokenizers.py  a table of how BPE vocabularies split text into words
bpe.py spm.py wpm.py ugm.py rwkv.py plamo2.py
                   text to tokens, one kind of vocabulary each
charsmap.py        SentencePiece's map of characters, for UGM
pieces.py          the tokens that begin at a position, for UGM, RWKV and PLaMo-2
segments.py        BPE for text that is rewritten first: Chinese words, DNA
merging.py         merging pieces pair by pair, for BPE and SPM
partition.py       tokens that are matched literally
escapes.py         bytes that are not UTF-8, byte tokens
stream.py          tokens to text, one by one
tokenizer.py       Tokenizer
"""

from ggmlpy.text.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, PreTokenizerWarning
from ggmlpy.text.tokenizer.special import TokenType
from ggmlpy.text.tokenizer.stream import StreamDecoder
from ggmlpy.text.tokenizer.tokenizer import KINDS, Tokenizer
from ggmlpy.text.tokenizer.vocabulary import TokenizerWarning

__all__ = [
    "KINDS",
    "PRE_TOKENIZERS",
    "PreTokenizer",
    "PreTokenizerWarning",
    "StreamDecoder",
    "TokenType",
    "Tokenizer",
    "TokenizerWarning",
]
