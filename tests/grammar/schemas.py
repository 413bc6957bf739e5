"""Random JSON schemas, of the keywords that can be enforced; their texts are short."""

from __future__ import annotations

import random
from typing import Any

WORDS = ["name", "age", "the_color", "pets", "a b", "é", "is/it", "~x", "list", "id"]
FORMATS = ["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname"]
PATTERNS = ["^[a-z]{2,5}$", "^(cat|dog)s?$", "^\\d{3}-\\d{4}$", "^[A-Z][a-z]*é?$"]
CONSTANTS: list[Any] = [None, True, False, 0, -1.5, "a", 'a "b"\n', "日本", [1, "b"], {"k": []}]


def random_schema(seed: int) -> dict[str, Any]:
    """The schema of a number."""
    return _object(random.Random(seed), 3)


def _any(rng: random.Random, depth: int) -> Any:
    kinds = [_string, _number, _integer, _enum, _const, _simple, _several]
    if depth > 0:
        kinds += [_object, _object, _array, _any_of, _all_of, _tuple, _map]
    return rng.choice(kinds)(rng, depth - 1)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(1, 4))
    required = [name for name in names if rng.random() < 0.7]
    return {
        "type": "object",
        "properties": {name: _any(rng, depth) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _map(rng: random.Random, depth: int) -> dict[str, Any]:
    most = rng.randint(1, 3)
    pattern = {"patternProperties": {"^[a-z]{1,6}$": _any(rng, 0)}, "additionalProperties": False}
    plain = {"additionalProperties": _any(rng, 0)}
    return {"type": "object", "maxProperties": most, **rng.choice([pattern, plain])}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    limits = {"minItems": least, "maxItems": least + rng.randint(0, 2)}
    return {"type": "array", "items": _any(rng, depth), **limits}


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    items = [_any(rng, depth) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 3)
    length = {"minLength": least, "maxLength": least + rng.randint(0, 12)}
    forms: list[dict[str, Any]] = [
        length,
        {"format": rng.choice(FORMATS)},
        {"pattern": rng.choice(PATTERNS)},
    ]
    return {"type": "string", **rng.choice(forms)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 99)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-500, 500)
    more = rng.choice([{}, {"multipleOf": rng.choice([2, 5, 7])}])
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(20, 999), **more}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample(CONSTANTS, rng.randint(1, 4))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice(CONSTANTS)}


def _simple(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["null", "boolean"])}


def _several(rng: random.Random, depth: int) -> dict[str, Any]:
    types = rng.sample(["null", "boolean", "integer"], 2)
    return {"type": types, "minimum": 0, "maximum": 99}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randint(1, 3))]}


def _all_of(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-20, 20)
    return {
        "allOf": [
            {"type": "integer", "minimum": low},
            {"type": ["integer", "null"], "maximum": low + rng.randint(0, 50)},
        ]
    }
