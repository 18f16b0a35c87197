"""A valid JSON value for a JSON schema, always the same one."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

_DEEP = 12
"""Below this depth optional parts are left out, so that schemas that contain themselves come to an end."""

_FORMATS = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "PT1M",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def sample(schema: Any) -> Any:
    """A value for ``schema``: the first of an enum, the least number, all properties that are required.

    Understands what structured output allows (objects, arrays, enums, references, unions, bounds, formats,
    Gemini's upper-case types). ``pattern`` is not followed.
    """
    root = schema if isinstance(schema, Mapping) else {}
    return _value(root, root, 0, "value")


def _value(schema: Any, root: Mapping[str, Any], depth: int, name: str) -> Any:
    """A value that a JSON schema allows; ``name`` is of the field, for texts and where the schema says nothing."""
    if not isinstance(schema, Mapping) or depth > 4 * _DEEP:
        return name
    if "$ref" in schema:
        return _value(_resolve(str(schema["$ref"]), root), root, depth + 1, name)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for union in ("anyOf", "oneOf"):
        options = schema.get(union)
        if options:
            return _value(_choose(options, depth), root, depth + 1, name)
    if schema.get("allOf"):
        return _value(_merged(schema, root), root, depth + 1, name)
    return _typed(schema, root, depth, name)


def _typed(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, name: str) -> Any:
    """A value of the type that a schema names, the first but null of several."""
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    kind = str(kind).lower() if kind else ("object" if "properties" in schema else "string")
    if kind == "object":
        return _object(schema, root, depth)
    if kind == "array":
        return _array(schema, root, depth, name)
    if kind in ("integer", "number"):
        return _number(schema, whole=kind == "integer")
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return _string(schema, name)


def _choose(options: Any, depth: int) -> Any:
    known = [one for one in options if isinstance(one, Mapping)]
    empty = [one for one in known if one.get("type") == "null"]
    if depth > _DEEP and empty:
        return empty[0]
    return next((one for one in known if one.get("type") != "null"), known[0] if known else {})


def _merged(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with all that the parts of its ``allOf`` ask for; what it says itself comes first."""
    merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
    for part in schema["allOf"]:
        found = _resolve(str(part["$ref"]), root) if "$ref" in part else part
        for key, value in found.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required":
                merged[key] = [*merged.get(key, []), *value]
            else:
                merged.setdefault(key, value)
    return merged


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    required = schema.get("required")
    wanted = list(properties) if required is None and depth <= _DEEP else list(required or ())
    made = {key: _value(properties[key], root, depth + 1, key) for key in properties if key in wanted}
    return made | {key: key for key in wanted if key not in properties}


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, name: str) -> list[Any]:
    first = schema.get("prefixItems")
    if first:
        return [_value(one, root, depth + 1, name) for one in first]
    least = int(schema.get("minItems") or 0)
    most = int(schema.get("maxItems", 1))
    count = max(least, min(1, most)) if depth <= _DEEP else least
    return [_value(schema.get("items", {}), root, depth + 1, name) for _ in range(count)]


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    """The smallest number that a schema allows, 1 where it names no bound."""
    low = schema.get("minimum")
    if schema.get("exclusiveMinimum") is not None:
        low = schema["exclusiveMinimum"] + (1 if whole else 0.5)
    high = schema.get("maximum")
    if schema.get("exclusiveMaximum") is not None:
        high = schema["exclusiveMaximum"] - (1 if whole else 0.5)
    value: float = 1 if low is None else low
    if high is not None and value > high:
        value = high
    step = schema.get("multipleOf")
    if step:
        value = ceil(value / step) * step
    return int(value) if whole else float(value)


def _string(schema: Mapping[str, Any], name: str) -> str:
    text = _FORMATS.get(str(schema.get("format")), f"a {name}".replace("_", " "))
    least, most = int(schema.get("minLength") or 0), schema.get("maxLength")
    text += "." * (least - len(text))
    return text if most is None else text[: int(most)]


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    node: Any = root
    for step in reference.lstrip("#").strip("/").split("/"):
        if step:
            node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, Mapping) else {}
    return node if isinstance(node, Mapping) else {}
