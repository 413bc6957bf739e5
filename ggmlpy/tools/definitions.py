"""Tools as OpenAI's API has them: their definitions, and which of them an answer may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ggmlpy.common.arguments import kind_of
from ggmlpy.errors import ArgumentError

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
SHARED = ("$defs", "definitions")  # of a schema
NOTES = {"title", "description", "$schema", "examples", "default"}  # without a meaning for values
_PLAIN = {"type", "properties", "required", "additionalProperties", *SHARED, *NOTES}
_CHOICES = '"auto", "none", "required" or {"type": "function", "function": {"name": …}}'


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call."""

    name: str
    parameters: Mapping[str, Any]  # a JSON schema
    definition: Mapping[str, Any]  # as it was given

    @property
    def schema(self) -> dict[str, Any]:
        """What a grammar makes of the parameters: as in llama.cpp no others than are described,
        unless the schema says that there may be some."""
        return {"type": "object", "additionalProperties": False, **self.parameters}

    @property
    def whole_definition(self) -> dict[str, Any]:
        """The definition with a description and parameters, empty ones where it has none."""
        function = {"description": "", "parameters": _NO_PARAMETERS, **self.definition["function"]}
        return {**self.definition, "function": function}

    def loosened(self, can_be_used: Callable[[Any], bool]) -> Tool:
        """The tool, but any value for each parameter whose schema cannot be used."""
        if can_be_used(self.schema):
            return self
        properties = {n: s if can_be_used(s) else {} for n, s in self.properties.items()}
        parameters = {"type": "object", "properties": properties, "required": [*self.required]}
        return Tool(self.name, parameters, self.definition)

    @property
    def has_properties_only(self) -> bool:
        """Whether the schema says of the parameters only what they are, and which there must be."""
        is_closed = self.parameters.get("additionalProperties", False) is False
        names = self.properties.keys()
        are_known = all(isinstance(name, str) and name in names for name in self.required)
        return self.parameters.keys() <= _PLAIN and is_closed and are_known

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of the parameters by name, with the definitions that they may refer to."""
        found = self.parameters.get("properties", {})
        return {name: self.with_shared(schema) for name, schema in found.items()}

    def with_shared(self, schema: Any) -> Any:
        """A part of the schema, with the definitions that it may refer to."""
        if not isinstance(schema, Mapping):
            return schema
        return {**{key: self.parameters[key] for key in SHARED if key in self.parameters}, **schema}

    @property
    def required(self) -> Sequence[str]:
        """The names of those that a call must have."""
        found = self.parameters.get("required")
        return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools, and how an answer may use them."""

    tools: Sequence[Tool] = ()  # that are described to the model
    callable: Sequence[Tool] = ()  # that it may call
    must_call: bool = False
    parallel: bool = True  # whether an answer may have several calls
    types: dict[str, dict[str, Any]] = field(default_factory=dict)  # schemas by tool and parameter


def is_text(schema: Any) -> bool:
    """Whether all values of a parameter are strings, by its schema."""
    return kinds_of(schema) == {"string"}


def choices_of(schema: Any) -> Sequence[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if not isinstance(schema, Mapping):
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return listed if isinstance(listed, list | tuple) else None


def has_bare_text(schema: Any) -> bool:
    """Whether any string is a value of a parameter whose values may be others too."""
    if not isinstance(schema, Mapping) or choices_of(schema) is not None:
        return False
    keys = schema.keys() - NOTES - {*SHARED}
    if not keys or keys == {"type"}:
        return not keys or "string" in kinds_of(schema)
    parts = schema.get("anyOf") or schema.get("oneOf")
    if len(keys) > 1 or not isinstance(parts, list | tuple):
        return False
    types = [part.keys() - NOTES if isinstance(part, Mapping) else set() for part in parts]
    return all(each == {"type"} for each in types) and "string" in kinds_of(schema)


def kinds_of(schema: Any) -> set[str]:
    """The types of JSON that a schema allows, as far as it says so."""
    if not isinstance(schema, Mapping):
        return set()
    choices = choices_of(schema)
    if choices is not None:
        return {_KINDS.get(type(value), "object") for value in choices}
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, Sequence):
        return {kind for kind in kinds if isinstance(kind, str)}
    lists = (schema.get("anyOf"), schema.get("oneOf"))
    parts = [part for each in lists if isinstance(each, list | tuple) for part in each]
    found = [kinds_of(part) for part in parts]
    return set().union(*found) if all(found) else set()


def is_of_kind(value: Any, kinds: set[str]) -> bool:
    """Whether a value of JSON has one of some types."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    kind = _KINDS.get(type(value), "array" if isinstance(value, list) else "object")
    return kind in kinds or (type(value) is int and "integer" in kinds)


_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}


def tool_use(tools: Any, tool_choice: Any, parallel: bool | None) -> ToolUse:
    """What the options `tools`, `tool_choice` and `parallel_tool_calls` ask for.

    Raises ArgumentError for a definition or a choice of another form, and one of an unknown tool.
    """
    defined = _definitions(tools)
    if parallel is not None and not isinstance(parallel, bool):
        raise ArgumentError(f"parallel_tool_calls is {kind_of(parallel)}: it must be True or False")
    allowed, must_call = _chosen(defined, tool_choice)
    types = {tool.name: dict(tool.properties) for tool in allowed}
    described = defined if allowed else []
    return ToolUse(described, allowed, must_call, parallel is not False, types)


def _definitions(tools: Any) -> list[Tool]:
    if tools is None:
        return []
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise ArgumentError(f"tools is {kind_of(tools)}: it must be a list of definitions")
    found = [_definition(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    names: set[str] = set()
    for i, tool in enumerate(found):
        if tool.name in names:
            raise ArgumentError(f"tools[{i}]: there is another tool with the name {tool.name!r}")
        names.add(tool.name)
    return found


def _definition(tool: Any, where: str) -> Tool:
    form = '{"type": "function", "function": {"name": …, "parameters": …}}'
    if not isinstance(tool, Mapping):
        raise ArgumentError(f"{where} is {kind_of(tool)}: it must be {form}")
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise ArgumentError(f"{where} is {dict(tool)!r:.80}: it must be {form}")
    name = function.get("name")
    if not isinstance(name, str) or not name or any(c.isspace() for c in name):
        raise ArgumentError(f"{where}: name is {name!r}: it must be a string without spaces")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = _NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise ArgumentError(
            f"{where} ({name}): parameters is {kind_of(parameters)}: it must be a JSON schema"
        )
    if parameters.get("type", "object") != "object":
        type_ = parameters["type"]
        raise ArgumentError(f'{where} ({name}): parameters has type {type_!r}: it must be "object"')
    properties = parameters.get("properties", {})
    if not isinstance(properties, Mapping):
        kind = kind_of(properties)
        raise ArgumentError(f"{where} ({name}): properties is {kind}: it must be an object")
    return Tool(name, parameters, {"type": "function", **tool})


def _chosen(tools: list[Tool], choice: Any) -> tuple[list[Tool], bool]:
    """The tools that may be called, and whether one must be."""
    if choice is None or choice == "auto":
        return tools, False
    if choice == "none":
        return [], False
    if choice == "required":
        if not tools:
            raise ArgumentError('tool_choice is "required": tools must have at least one')
        return tools, True
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(choice, Mapping) or name is None:
        raise ArgumentError(f"tool_choice is {choice!r:.80}: it must be {_CHOICES}")
    return [_named(tools, name)], True


def _allowed(tools: list[Tool], choice: Mapping[str, Any]) -> tuple[list[Tool], bool]:
    """The same of {"type": "allowed_tools", …}: the model knows all tools, and may call some."""
    given = choice.get("allowed_tools")
    mode = given.get("mode", "auto") if isinstance(given, Mapping) else None
    names = given.get("tools") if isinstance(given, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(names, list | tuple) or not names:
        raise ArgumentError(
            'tool_choice is of type "allowed_tools": it must have {"allowed_tools": {"mode": "auto"'
            ' or "required", "tools": [{"type": "function", "function": {"name": …}}]}}'
        )
    functions = [each.get("function") if isinstance(each, Mapping) else None for each in names]
    found = [each.get("name") if isinstance(each, Mapping) else None for each in functions]
    allowed = {_named(tools, name).name for name in found}
    return [tool for tool in tools if tool.name in allowed], mode == "required"


def _named(tools: list[Tool], name: Any) -> Tool:
    """Raises ArgumentError for a name that none of the tools has."""
    for tool in tools:
        if tool.name == name:
            return tool
    known = ", ".join(tool.name for tool in tools) or "none"
    raise ArgumentError(f"tool_choice names {name!r}, which is no tool: tools are {known}")
