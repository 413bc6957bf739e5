"""The story teller: turns templates into sentences and keeps track of who is who.

A template is plain English with two kinds of marks:

* ``[this|that|]`` picks one alternative (they nest; an empty one is allowed);
* ``{a}`` names the entity filed under ``a``; ``{a.he}`` and so on are its other forms.

``{a.s}``, ``{a.o}`` and ``{a.p}`` (subject, object, possessive) choose between the name and the
pronoun: a pronoun appears only when the last character it could mean is ``a``.
"""

import random
import re
from collections.abc import Sequence
from typing import Any

from training.corpus.world import Character, Thing

_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
_FIELD = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_SENTENCE_START = re.compile(r'(^"?|[.!?] "?|\." "?)([a-z])')
_SENTENCE_END = re.compile(r'[.!?]"?(?= |$)')

_MOODS: dict[str, tuple[str, ...]] = {
    "plain": ("",),
    "happy": ("smiled", "laughed", "grinned", "clapped {w.his} hands", "beamed"),
    "sad": ("sighed", "looked down", "wiped {w.his} eyes", "sniffed"),
    "kind": ("smiled", "nodded", "smiled a warm smile", "knelt down"),
    "scared": ("shivered", "took a deep breath", "gulped"),
    "angry": ("frowned", "stamped {w.his} foot", "crossed {w.his} arms"),
    "thinking": ("thought for a moment", "tilted {w.his} head", "looked around", "nodded slowly"),
}
_PAW_MOODS = {
    "clapped {w.his} hands": "clapped {w.his} paws",
    "wiped {w.his} eyes": "hung {w.his} head",
    "crossed {w.his} arms": "turned away",
    "knelt down": "nodded kindly",
}
_MANNERS: dict[str, tuple[str, ...]] = {
    "plain": ("",),
    "happy": ("happily", "with a big smile", "with a laugh", "in a cheerful voice"),
    "sad": ("sadly", "in a small voice", "quietly", "with a sigh"),
    "kind": ("kindly", "softly", "with a smile", "in a gentle voice"),
    "scared": ("in a tiny voice", "in a shaky voice", "nervously"),
    "angry": ("angrily", "in a cross voice", "loudly"),
    "thinking": ("slowly", "after a while", "thoughtfully"),
}
_VERBS: dict[str, tuple[str, ...]] = {
    ".": ("said",),
    "?": ("asked",),
    "!": ("said", "cried", "called", "shouted"),
}
_SOFT = ("sad", "kind", "scared", "thinking")


class Teller:
    """Writes one story, sentence by sentence."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cast: dict[str, Character | Thing] = {}
        self.words: dict[str, str] = {}
        self.paragraphs: list[list[str]] = [[]]
        self.used_names: set[str] = set()
        self._introduced: set[str] = set()
        self._last: dict[str, str | None] = {}  # pronoun -> key of whom it would mean
        self._in_sentence: dict[str, set[str]] = {}  # pronoun -> keys named in this sentence

    # --- choices ---

    def pick(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    # --- writing ---

    def tell(self, *options: str) -> None:
        """Write one of the options."""
        self.paragraphs[-1].append(self.render(self.pick(options)))

    def maybe(self, p: float, *options: str) -> None:
        """Write one of the options with probability p."""
        if self.chance(p):
            self.tell(*options)

    def paragraph(self, p: float = 0.7) -> None:
        """Start a new paragraph with probability p."""
        if self.paragraphs[-1] and self.chance(p):
            self.paragraphs.append([])
            self._last.clear()

    def says(self, key: str, *texts: str, mood: str = "plain", verb: str | None = None) -> None:
        """Write one of the texts as direct speech of the character filed under key."""
        self.paragraphs[-1].append(self._speech(key, self.pick(texts), mood, verb))

    def maybe_says(self, p: float, key: str, *texts: str, mood: str = "plain") -> None:
        if self.chance(p):
            self.says(key, *texts, mood=mood)

    def text(self) -> str:
        return "\n\n".join(" ".join(part) for part in self.paragraphs if part)

    # --- rendering ---

    def render(self, template: str, capitals: bool = True) -> str:
        """Resolve alternatives, then fields from left to right, then capital letters."""
        template = self._choose(template)
        out: list[str] = []
        position = 0
        for match in _FIELD.finditer(template):
            self._pass_text(template[position : match.start()])
            out.append(template[position : match.start()])
            out.append(self._field(match.group(1), match.group(2)))
            position = match.end()
        self._pass_text(template[position:])
        out.append(template[position:])
        text = re.sub(r" +", " ", "".join(out)).strip()
        if not capitals:
            return text
        return _SENTENCE_START.sub(lambda m: m.group(1) + m.group(2).upper(), text)

    def _choose(self, template: str) -> str:
        """Resolve the alternatives, the innermost first."""
        while match := _ALTERNATIVES.search(template):
            choice = self.pick(match.group(1).split("|"))
            template = template[: match.start()] + choice + template[match.end() :]
        return template

    def _pass_text(self, text: str) -> None:
        if _SENTENCE_END.search(text):
            self._end_sentence()

    def _end_sentence(self) -> None:
        """Two characters of one pronoun in a sentence: the next pronoun would be unclear."""
        for pronoun, keys in self._in_sentence.items():
            if len(keys) > 1:
                self._last[pronoun] = None
        self._in_sentence.clear()

    def _field(self, key: str, form: str | None) -> str:
        if key in self.words:
            return self.render(self.words[key], capitals=False)
        entity = self.cast[key]
        if isinstance(entity, Thing):
            return entity.form(form, self.rng)
        return self._character(key, entity, form)

    def _character(self, key: str, who: Character, form: str | None) -> str:
        if form in who.PLAIN_FORMS:
            return who.form(form)
        clear = self._last.get(who.he) == key and self.chance(0.85)
        self._in_sentence.setdefault(who.he, set()).add(key)
        if form in ("he", "him", "his"):
            return who.form(form)
        if form == "intro" or key not in self._introduced:
            self._introduced.add(key)
            self._last[who.he] = key
            named = form == "p" and " named " in who.intro
            if form == "intro" or not (named or (who.is_plain and self.chance(0.5))):
                return who.intro + ("'s" if form == "p" else "")
            return who.form("possessive" if form == "p" else None)
        self._last[who.he] = key
        if clear and form in ("s", "o", "p"):
            return who.form({"s": "he", "o": "him", "p": "his"}[form])
        return who.form("possessive" if form == "p" else None)

    def known(self, *keys: str) -> None:
        """From here on these characters go by their names."""
        self._introduced.update(keys)

    # --- direct speech ---

    def _speech(self, key: str, text: str, mood: str, verb: str | None) -> str:
        who = self.cast[key]
        assert isinstance(who, Character)
        text = self._choose(text)
        # Said before the quotation, so that the names in it do not decide the speaker's pronoun.
        subject = self._character(key, who, "s")
        by_name = subject not in ("he", "she")
        before = dict(self._last)
        text = self.render(text)
        self._last = before | {who.he: key}
        self._in_sentence.clear()
        first, rest = _split_sentence(text)
        style = self.rng.random()
        split = style >= 0.45 and rest and self.chance(0.5)
        verb = verb or self.pick(_VERBS[first[-1] if split or style < 0.2 else text[-1]])
        if mood in _SOFT and verb in ("cried", "called", "shouted"):
            verb = "said"
        if mood in ("sad", "scared") and verb == "said" and self.chance(0.3):
            verb = "whispered"
        if style < 0.2:
            return f'{_upper(subject)} {verb}, "{text}"'
        if style < 0.45 and mood != "plain":
            return _quote_after_action(subject, verb, text, self.pick(_MOODS[mood]), who)
        tag = f"{verb} {subject}" if by_name and self.chance(0.6) else f"{subject} {verb}"
        if mood != "plain" and self.chance(0.4):
            tag += f" {self.pick(_MANNERS[mood])}"
        if split:
            return f'"{_comma(first)}" {tag}. "{rest}"'
        return f'"{_comma(text)}" {tag}.'


def _quote_after_action(subject: str, verb: str, text: str, action: str, who: Character) -> str:
    """He smiled and said, "..."."""
    if who.is_animal:
        action = _PAW_MOODS.get(action, action)
    action = action.replace("{w.his}", who.his)
    if text[-1] == ".":
        return f'{_upper(subject)} {action}. "{text}"'
    return f'{_upper(subject)} {action} and {verb}, "{text}"'


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _comma(text: str) -> str:
    """A quotation that ends in a full stop ends in a comma before its tag."""
    return text[:-1] + "," if text.endswith(".") else text


def _split_sentence(text: str) -> tuple[str, str]:
    """The first sentence of a quotation, and the rest (empty if there is no more)."""
    match = re.search(r"[.!?] ", text)
    return (text[: match.end() - 1], text[match.end() :]) if match else (text, "")
