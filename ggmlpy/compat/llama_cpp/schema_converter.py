"""JSON schemas to grammars in GBNF, as scripts ask for them.

An object has the properties that its schema names and no others, in their order, unless
`additionalProperties` allows more; a space is all white space there is. What a grammar of a schema
cannot say, such as bounds of numbers, is left out. `LlamaGrammar.from_json_schema` needs no GBNF,
and follows more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ggmlpy.common.quoting import quoted
from ggmlpy.compat.llama_cpp.schema_patterns import pattern_to_gbnf, text_in_gbnf
from ggmlpy.errors import GrammarError, Unsupported

__all__ = [
    "PRIMITIVE_RULES",
    "RESERVED_NAMES",
    "SPACE_RULE",
    "STRING_FORMAT_RULES",
    "BuiltinRule",
    "SchemaConverter",
]


@dataclass(slots=True)
class BuiltinRule:
    """A rule that grammars of schemas begin with: its options, and the rules that it names."""

    content: str
    deps: list[str] | None = None

    def __post_init__(self) -> None:
        self.deps = self.deps or []


SPACE_RULE = '" "?'
PRIMITIVE_RULES = {
    "boolean": BuiltinRule('("true" | "false") space'),
    "null": BuiltinRule('"null" space'),
    "integral-part": BuiltinRule('"0" | [1-9] [0-9]{0,15}'),
    "decimal-part": BuiltinRule("[0-9]{1,16}"),
    "integer": BuiltinRule('"-"? integral-part space', ["integral-part"]),
    "number": BuiltinRule(
        '"-"? integral-part ("." decimal-part)? ([eE] [-+]? [0-9]{1,15})? space',
        ["integral-part", "decimal-part"],
    ),
    "char": BuiltinRule(r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})'),
    "string": BuiltinRule(r'"\"" char* "\"" space', ["char"]),
    "uuid": BuiltinRule(
        r'"\"" [0-9a-fA-F]{8} ("-" [0-9a-fA-F]{4}){3} "-" [0-9a-fA-F]{12} "\"" space'
    ),
    "array": BuiltinRule('"[" space (value ("," space value)*)? "]" space', ["value"]),
    "object": BuiltinRule(
        '"{" space (string ":" space value ("," space string ":" space value)*)? "}" space',
        ["string", "value"],
    ),
    "value": BuiltinRule(
        "object | array | string | number | boolean | null",
        ["object", "array", "string", "number", "boolean", "null"],
    ),
}
STRING_FORMAT_RULES = {
    "date": BuiltinRule(
        '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ),
    "time": BuiltinRule(
        '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{3})?'
        ' ("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
    ),
    "date-time": BuiltinRule('date "T" time', ["date", "time"]),
    "date-string": BuiltinRule(r'"\"" date "\"" space', ["date"]),
    "time-string": BuiltinRule(r'"\"" time "\"" space', ["time"]),
    "date-time-string": BuiltinRule(r'"\"" date-time "\"" space', ["date-time"]),
}
_BUILTIN = PRIMITIVE_RULES | STRING_FORMAT_RULES
RESERVED_NAMES = {"root", "dot", "space", *_BUILTIN}


class SchemaConverter:
    """Collects the rules of a schema: `resolve_refs`, then `visit`, then `format_grammar`."""

    def __init__(
        self,
        *,
        prop_order: Mapping[str, int],
        allow_fetch: bool,
        dotall: bool,
        raw_pattern: bool,
    ) -> None:
        """`prop_order` are places of properties, before those of the schema; `dotall`: dots of
        patterns are line breaks too; `raw_pattern`: strings of a pattern have no quotes."""
        self._prop_order = prop_order
        self._allow_fetch = allow_fetch
        self._dotall = dotall
        self._raw_pattern = raw_pattern
        self._rules: dict[str, str] = {"space": SPACE_RULE}
        self._root: Any = {}
        self._rules_of_refs: dict[str, str] = {}

    def resolve_refs(self, schema: Any, url: str) -> Any:
        """Take the schema in which references of all that is visited are looked up. Returns it.

        Raises GrammarError for a reference to what is not there, Unsupported for one to another
        document.
        """
        self._root = schema
        for ref in _refs_in(schema):
            self._target(ref)
        return schema

    def visit(self, schema: Any, name: str) -> str:
        """Add the rules of a schema, and return the name of its own: `name` if that is free, "" is
        root. Raises GrammarError for a schema that no grammar can be made of."""
        try:
            rule = self._rule_of(schema, name)
        except RecursionError:
            raise GrammarError("the schema is nested too deeply, or names itself") from None
        if rule in _BUILTIN and name:
            return rule
        return self._add_rule(f"{name}-" if name in RESERVED_NAMES else name or "root", rule)

    def format_grammar(self) -> str:
        """The grammar."""
        return "\n".join(f"{name} ::= {rule}" for name, rule in sorted(self._rules.items()))

    def not_literal(
        self, literal: str, dotall: bool = True, maybe_escaped_underscores: bool = False
    ) -> str:
        """What is not the beginning of a text: `([^a] | "a" ([^b])?)` for "ab". With
        `maybe_escaped_underscores` a `_` may stand behind a backslash."""
        if not literal:
            raise GrammarError("not_literal: the text is empty")
        found = ""
        for i, character in reversed(list(enumerate(literal))):
            one = f"[^{text_in_gbnf(character)[1:-1]}]"
            if maybe_escaped_underscores and character == "_":
                one = '[^_\\\\] | "\\\\"? "_"'
            if i < len(literal) - 1:
                one += f" | {text_in_gbnf(character)} ({found})?"
            found = one
        return f"({found})"

    # --- rules ---

    def _add_rule(self, name: str, rule: str) -> str:
        """Add a rule under a name like `name`, unless it is there. Returns its name."""
        name = _rule_name(name)
        numbered, n = name, 0
        while self._rules.get(numbered, rule) != rule:
            numbered, n = f"{name}{n}", n + 1
        self._rules[numbered] = rule
        return numbered

    def _builtin(self, name: str) -> str:
        """Add a rule of those that grammars begin with, and what it names. Returns its name."""
        if name not in self._rules:
            rule = _BUILTIN[name]
            self._rules[name] = rule.content
            for dep in rule.deps or ():
                self._builtin(dep)
        return name

    def _rule_of(self, schema: Any, name: str) -> str:
        """The options of a schema; rules of its parts are added under names that begin so."""
        if schema is True:
            return self._builtin("value")
        kind = _mapping(schema).get("type")
        if isinstance(schema.get("$ref"), str):
            return self._rule_of_ref(schema["$ref"])
        for union in ("oneOf", "anyOf"):
            if union in schema:
                return self._union(_list(schema, union), name)
        if isinstance(kind, list):
            kinds = _list(schema, "type")
            return self._union([{**schema, "type": each} for each in kinds], name)
        if "const" in schema:
            return _json(schema["const"])
        if "enum" in schema:
            return " | ".join(map(_json, _list(schema, "enum")))
        if kind in (None, "object"):
            found = self._object_of(schema, name)
            if found is not None:
                return found
        if kind in (None, "array"):
            items = schema.get("prefixItems", schema.get("items"))
            if items is not None:
                return self._array(schema, items, name)
        if kind in (None, "string"):
            found = self._string_of(schema, kind)
            if found is not None:
                return found
        if kind == "object" or not (schema or name):
            return self._builtin("object")
        if kind is None:
            return self._builtin("value")
        if kind not in ("boolean", "integer", "number", "string", "null", "array"):
            raise GrammarError(f"the schema has the type {kind!r:.60}, which JSON does not have")
        return self._builtin(kind)

    def _union(self, schemas: Sequence[Any], name: str) -> str:
        stem = f"{name}-" if name else "alternative-"
        return " | ".join(self.visit(each, f"{stem}{i}") for i, each in enumerate(schemas))

    def _string_of(self, schema: Mapping[str, Any], kind: str | None) -> str | None:
        """The rule of a string with a pattern, a format or lengths; None without them."""
        format = schema.get("format")
        if "pattern" in schema:
            pattern = _value(schema, "pattern", str, "")
            options = pattern_to_gbnf(pattern, dotall=self._dotall, raw=self._raw_pattern)
            return options if self._raw_pattern else f'"\\"" ({options}) "\\"" space'
        if isinstance(format, str) and re.fullmatch("uuid[1-5]?", format):
            return self._builtin("uuid")
        if f"{format}-string" in STRING_FORMAT_RULES:
            return self._builtin(f"{format}-string")
        if kind == "string" and ("minLength" in schema or "maxLength" in schema):
            least, most = _bounds(schema, "minLength", "maxLength")
            upper = "" if most is None else most
            return f'"\\"" {self._builtin("char")}{{{least},{upper}}} "\\"" space'
        return None

    def _array(self, schema: Mapping[str, Any], items: Any, name: str) -> str:
        stem = f"{name}-" if name else ""
        if isinstance(items, list):
            parts = (self.visit(item, f"{stem}tuple-{i}") for i, item in enumerate(items))
            return f'"[" space {_SEPARATOR.join(parts)} "]" space'
        item = self.visit(items, f"{stem}item")
        least, most = _bounds(schema, "minItems", "maxItems")
        if most == 0:
            return '"[" space "]" space'
        more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        listed = f'{item} ("," space {item}){more}'
        return f'"[" space {listed} "]" space' if least else f'"[" space ({listed})? "]" space'

    # --- references ---

    def _rule_of_ref(self, ref: str) -> str:
        """The name of the rule of what a reference names: one rule, however often it is named."""
        if ref not in self._rules_of_refs:
            stem = _rule_name(f"ref-{ref.rpartition('/')[2]}" if ref != "#" else "ref")
            used = set(self._rules_of_refs.values()) | self._rules.keys()
            name = next(n for n in _numbered(stem) if n not in used)
            self._rules_of_refs[ref] = name
            self._rules[name] = ""  # taken, while the schema names itself
            self._rules[name] = self._rule_of(self._target(ref), name)
        return self._rules_of_refs[ref]

    def _target(self, ref: str) -> Any:
        if not re.match("#(/|$)", ref):
            remote = " (allow_fetch)" if self._allow_fetch else ""
            raise Unsupported(f"$ref {ref!r:.80}: schemas of other places are not fetched{remote}")
        target = self._root
        for part in ref.split("/")[1:]:
            key: Any = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key) if isinstance(target, list) else key]
            except (LookupError, TypeError, ValueError):
                raise GrammarError(f"$ref {quoted(ref)}: the schema has no such part") from None
        return target

    # --- objects ---

    def _object_of(self, schema: Mapping[str, Any], name: str) -> str | None:
        """The rule of an object with properties; None where any will do."""
        more = schema.get("additionalProperties")
        if "properties" in schema or more not in (None, True):
            required = _value(schema, "required", list, [])
            return self._object(_value(schema, "properties", dict, {}), required, more, name)
        if "allOf" not in schema:
            return None
        properties: dict[str, Any] = {}
        always: list[str] = []
        for part in _list(schema, "allOf"):
            of_part = self._properties_of(part)
            properties |= of_part
            always += of_part
            if isinstance(part, Mapping) and "anyOf" in part:
                for each in _list(part, "anyOf"):
                    properties |= self._properties_of(each)
        return self._object(properties, always, False, name)

    def _properties_of(self, schema: Any) -> dict[str, Any]:
        """Those of a part of an object's schema, or of what it refers to."""
        if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            schema = self._target(schema["$ref"])
        return _value(_mapping(schema), "properties", dict, {})

    def _object(
        self, properties: Mapping[str, Any], required: Sequence[Any], more: Any, name: str
    ) -> str:
        stem = f"{name}-" if name else ""
        order = sorted(
            properties, key=lambda each: self._prop_order.get(each, len(self._prop_order))
        )
        pairs = {
            each: self._add_rule(
                f"{stem}{each}-kv",
                f'{_json(each)} space ":" space {self.visit(properties[each], f"{stem}{each}")}',
            )
            for each in order
        }
        needed = [pairs[each] for each in order if each in required]
        optional = [pairs[each] for each in order if each not in required]
        if more:
            value = self.visit(more, f"{stem}additional-value")
            pair = f'{self._builtin("string")} ":" space {value}'
            pair = self._add_rule(f"{stem}additional-kv", pair)
            optional.append(self._add_rule(f"{stem}additional-kvs", f'{pair} ("," space {pair})*'))
        rule = _SEPARATOR.join(needed)
        if optional:
            some = self._some_of(optional, stem)
            rule += f' ("," space ({some}))?' if needed else f"({some})?"
        return f'"{{" space {rule} "}}" space' if rule else '"{" space "}" space'

    def _some_of(self, pairs: Sequence[str], stem: str) -> str:
        """At least one of these in their order, as options: each as the first, and what follows."""
        rest, options = "", list[str]()
        for i, pair in reversed(list(enumerate(pairs))):
            options.insert(0, f"{pair} {rest}".rstrip())
            if i:
                rest = self._add_rule(f"{stem}rest-{i}", f'("," space {pair})? {rest}'.rstrip())
        return " | ".join(options)


_SEPARATOR = ' "," space '
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a string", int: "an integer"}
Kind = TypeVar("Kind")


def _mapping(schema: Any) -> Mapping[str, Any]:
    if not isinstance(schema, Mapping):
        raise GrammarError(f"{schema!r:.60} is no schema that a grammar can be made of")
    return schema


def _value(schema: Mapping[str, Any], key: str, kind: type[Kind], default: Kind) -> Kind:
    """The value of a keyword. Raises GrammarError for one of another kind."""
    value = schema.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise GrammarError(f"the schema has {key} {value!r:.60}: it must be {_KINDS[kind]}")
    return value


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The value of a keyword that is a list. Raises GrammarError for an empty one too."""
    values = _value(schema, key, list, [])
    if not values:
        raise GrammarError(f"the schema has an empty {key}, which nothing can be")
    return values


def _bounds(schema: Mapping[str, Any], least: str, most: str) -> tuple[int, int | None]:
    """The values of two keywords that limit a number. Raises GrammarError if none is in them."""
    low = _value(schema, least, int, 0)
    high = None if most not in schema else _value(schema, most, int, 0)
    if low < 0 or (high is not None and high < low):
        raise GrammarError(f"the schema has {least} {low} and {most} {high}: nothing is so long")
    return low, high


def _json(value: Any) -> str:
    """A constant as JSON, in GBNF."""
    return text_in_gbnf(json.dumps(value, ensure_ascii=False))


def _rule_name(text: str) -> str:
    return re.sub("[^a-zA-Z0-9-]+", "-", text)


def _numbered(stem: str) -> Iterable[str]:
    yield stem
    n = 0
    while True:
        yield f"{stem}{n}"
        n += 1


def _refs_in(schema: Any) -> Iterable[str]:
    """All references of a schema."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for part in schema.values():
            yield from _refs_in(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _refs_in(part)
