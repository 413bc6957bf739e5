"""Structured output: grammars, and which tokens they allow next.

In: a grammar, a vocabulary. Out: masks of tokens, and the tokens that have no alternative.

    spec.py            Grammar: JSON schemas, choices, regular expressions, GBNF, Lark
    response_format.py a Grammar from OpenAI's response_format
    gbnf.py            GBNF to a tree
    nodes.py           its nodes
    recursion.py       rules that only repeat, without recursion
    lexemes.py         where a lexer that takes the longest match would lose texts of a grammar
    lark.py            the tree to llguidance's Lark
    schema_errors.py   the part of a JSON schema that is refused
    vocabulary.py      Matchers: grammars for the tokens of a vocabulary
    matcher.py         Matcher: the state of one answer
    lazy.py            grammars that hold from a trigger on
    library.py         llguidance, which does the parsing
"""

from __future__ import annotations

from ggmlpy.grammar.lazy import LazyGrammar, LazyMatcher
from ggmlpy.grammar.library import is_installed
from ggmlpy.grammar.matcher import Matcher
from ggmlpy.grammar.response_format import grammar_option
from ggmlpy.grammar.spec import Grammar, schema_refusal
from ggmlpy.grammar.vocabulary import Matchers

__all__ = [
    "Grammar",
    "LazyGrammar",
    "LazyMatcher",
    "Matcher",
    "Matchers",
    "grammar_option",
    "is_installed",
    "schema_refusal",
]
