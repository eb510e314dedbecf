"""Tool calls: their JSON, and the check of their arguments against a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tandem.contracts.bounds import values_of

Call = tuple[str, Mapping[str, Any]]  # the name of a tool, and its arguments
DEEPEST = 32  # levels of lists and objects that are read
TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


class Refused(ValueError):
    """The reason why a text is invalid, addressed to its author."""


def strip_thoughts(text: str) -> str:
    """The text outside of <think>...</think>: what servers search for calls, and clients keep."""
    *ended, rest = text.split("</think>")
    kept = ""
    for piece in ended:
        before, opened, _ = piece.partition("<think>")
        # Unopened, it began with the text: the template had written the tag.
        kept = kept + before if opened else ""
    return (kept + rest).strip()


def read_json(text: str | bytes, name: str) -> Any:
    """Foreign JSON. Raises Refused if it is invalid or nested too deeply.

    name: its name in the error.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the {name} is not JSON") from error
    if is_deeper(said, DEEPEST):
        raise Refused(f"the {name} has over {DEEPEST} levels of lists and objects")
    return said


def read_calls(text: str) -> list[Call]:
    """The names and arguments of one or more calls in JSON. Raises Refused for an invalid one."""
    said = read_json(text, "call")
    if not is_unicode(said):
        raise Refused("the call contains half of a surrogate pair, which is no character")
    return [as_call(one) for one in (said if isinstance(said, list) and said else [said])]


def as_call(said: object) -> Call:
    """The name and the arguments of a call. Raises Refused for an invalid one."""
    match said:
        case {"name": str(name)}:
            arguments = said.get("arguments", said.get("parameters", {}))
            if not isinstance(arguments, dict):
                raise Refused("arguments must be an object of names and values")
            return name, arguments
    raise Refused("a call must be an object with name and arguments")


def as_tool_calls(written: Iterable[Call | Refused]) -> list[dict]:
    """The calls of a move that can be read, in the form of a chat message."""
    calls = (call for call in written if not isinstance(call, Refused))
    return [
        {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        for name, arguments in calls
    ]


def is_unicode(value: object) -> bool:
    """Whether all texts in a value of JSON can be encoded: escapes may spell half of a surrogate
    pair, which no tokenizer accepts."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def is_deeper(value: object, most: int) -> bool:
    """Whether lists and objects in it are nested more deeply."""
    level = [value]
    for _ in range(most):
        level = [inner for one in level for inner in items_of(one)]
    return any(isinstance(one, dict | list) for one in level)


def items_of(value: object) -> Sequence[object]:
    """The items of a list or an object."""
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
    return ()


def check_arguments(name: str, arguments: Mapping[str, Any], schema: Mapping) -> None:
    """Refuse names that the tool does not have, and values of another type."""
    known = schema.get("properties", {})
    missing = [one for one in schema.get("required", ()) if one not in arguments]
    unknown = [one for one in arguments if one not in known]
    if missing or unknown:
        wrong = [*(f"{one} is missing" for one in missing), *(f"no {one}" for one in unknown)]
        raise Refused(f"{name} takes {', '.join(known) or 'nothing'}: {', '.join(wrong)}")
    for one, value in arguments.items():
        if not fits(value, known[one]):
            raise Refused(
                f"{one} of {name} must be {describe_schema(known[one])}, not {json.dumps(value)}"
            )


def fits(value: Any, schema: Mapping | bool) -> bool:
    """Whether a value is of a schema, as transformers makes them of type hints."""
    if isinstance(schema, bool):  # as in JSON Schema: anything, or nothing
        return schema
    if value is None and schema.get("nullable"):
        return True
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    # As in JSON, where true is not 1.
    if "enum" in schema and json.dumps(value) not in map(json.dumps, schema["enum"]):
        return False
    kinds = kinds_of(schema)
    if kinds and not any(is_of(value, kind) for kind in kinds):
        return False
    return all(fits(inner, of) for inner, of in inner_of(value, schema))


def kinds_of(schema: Mapping) -> list[str]:
    """The types that a schema names; none: any."""
    return values_of(schema.get("type", []))


def is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return kind not in TYPES
    return isinstance(value, TYPES.get(kind, object))


def inner_of(value: Any, schema: Mapping) -> list[tuple[Any, Mapping]]:
    """The items of a list or an object, each with its own schema."""
    match value, schema:
        case list(), {"prefixItems": [*places]}:
            none = {"enum": []}  # a place too many, or one too few
            wrong = [(None, none)] * (len(value) != len(places))
            return [*zip(value, places, strict=False), *wrong]
        case (list(), {"items": of}) | (dict(), {"additionalProperties": of}) if of:
            return [(inner, of) for inner in items_of(value)]
    return []


def describe_schema(schema: Mapping) -> str:
    """The requirement of a schema, in words."""
    if "anyOf" in schema:
        words = [describe_schema(one) for one in schema["anyOf"]]
    elif "enum" in schema:
        words = [json.dumps(one) for one in schema["enum"]]
    elif "prefixItems" in schema:
        words = [f"an array of {len(schema['prefixItems'])}"]
    else:
        words = [f"{'an' if kind[0] in 'aeio' else 'a'} {kind}" for kind in kinds_of(schema)]
    within = schema.get("items") or schema.get("additionalProperties")
    said = " or ".join(words) + (f" of which each is {describe_schema(within)}" if within else "")
    return f"{said} or null" if schema.get("nullable") else said
