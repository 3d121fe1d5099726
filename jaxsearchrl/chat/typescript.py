"""Tools as gpt-oss reads them: schemas as a TypeScript-like namespace, word for word what `openai-harmony` writes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxsearchrl.messages import ToolSpec


def namespace(name: str, tools: Sequence[ToolSpec]) -> str:
    """The namespace with a function per tool. Only what describes a type is kept of a schema: no limits, no lengths."""
    functions = "".join(f"{_function(tool)}\n\n" for tool in tools)
    return f"namespace {name} {{\n\n{functions}}} // namespace {name}"


def _function(tool: ToolSpec) -> str:
    properties = tool.parameters.get("properties")
    arguments = f"_: {_object(tool.parameters, '')}" if properties else ""
    return f"{_comment(tool.description)}type {tool.name} = ({arguments}) => any;"


def _object(schema: Mapping[str, Any], indent: str) -> str:
    required = schema.get("required", ())
    lines = "".join(
        f"{_comment(part.get('description', ''), indent)}{indent}{name}{'' if name in required else '?'}: "
        f"{_type(part, indent)},{_default(part)}\n"
        for name, part in schema.get("properties", {}).items()
    )
    return f"{{\n{lines}{indent}}}"


def _type(schema: Mapping[str, Any], indent: str) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_name(one) for one in kind)
    if kind == "object" and schema.get("properties"):
        return _object(schema, indent + "    ")
    if kind == "array":
        return f"{_type(schema['items'], indent)}[]" if "items" in schema else "any[]"
    if kind == "string" and schema.get("enum"):
        return " | ".join(f'"{value}"' for value in schema["enum"])
    return _name(kind)


def _name(kind: str | None) -> str:
    return {"integer": "number", None: "any"}.get(kind, kind or "any")


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    elif "enum" not in schema:
        value = f'"{value}"'
    return f" // default: {value}"


def _comment(text: str, indent: str = "") -> str:
    return "".join(f"{indent}// {line}\n" for line in text.splitlines())
