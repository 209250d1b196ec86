"""What the model may call: the template's list, the parser's, and what is demanded of the answer.

The template gets the client's own objects with their keys in order, since they are part of the
prompt's beginning.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tr.serve.errors import invalid
from tr.serve.job import Constraint, Tool
from tr.serve.logs import tell

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


@dataclass(frozen=True)
class Tools:
    """`listed`: for the template. `callable`: what output may call; empty where choice is none, so
    that the prompt stays the same and a call is plain text.
    """

    listed: Sequence[Mapping[str, Any]] = ()
    callable: Sequence[Tool] = ()
    constraint: Constraint | None = None
    parallel: bool = True


NO_TOOLS = Tools()


def from_chat(body: Mapping[str, Any]) -> Tools:
    """Chat Completions: `tools`, or the older `functions`."""
    listed, param = body.get("tools"), "tools"
    choice, said = body.get("tool_choice"), "tool_choice"
    if listed is None and body.get("functions"):
        param = "functions"
        listed = [{"type": "function", "function": f} for f in _objects(body[param], param)]
        choice, said = body.get("function_call"), "function_call"
    found = []
    for index, tool in enumerate(_objects(listed, param)):
        where = f"{param}[{index}]"
        if tool.get("type", "function") != "function":
            raise invalid(f"{where}.type", f"expected function, got {tool['type']!r:.40}")
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise invalid(f"{where}.function", "expected an object")
        found.append((tool, _tool(function, "parameters", f"{where}.function")))
    if isinstance(choice, Mapping):
        inner = choice.get("function", choice)
        choice = {"name": inner.get("name") if isinstance(inner, Mapping) else None}
    return _tools(found, choice, said, body.get("parallel_tool_calls"))


def from_responses(body: Mapping[str, Any]) -> Tools:
    """Responses: flat functions, and those of a namespace as `namespace__name`.

    Tools that a server would have to run itself are left out.
    """
    found = []
    for index, tool in enumerate(_objects(body.get("tools"), "tools")):
        where, kind = f"tools[{index}]", tool.get("type")
        if kind == "function":
            found.append(_flat(tool, where))
        elif kind == "namespace":
            for inner, one in enumerate(_objects(tool.get("tools"), f"{where}.tools")):
                if one.get("type") == "function":
                    name = f"{tool.get('name')}__{one.get('name')}"
                    found.append(_flat({**one, "name": name}, f"{where}.tools[{inner}]"))
        else:
            tell("tool left out", kind=str(kind)[:40])
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        choice = {"name": choice.get("name")}
    return _tools(found, choice, "tool_choice", body.get("parallel_tool_calls"))


def from_messages(body: Mapping[str, Any]) -> Tools:
    """Anthropic: custom tools; typed ones, which Anthropic's own service knows, are left out."""
    found, choice = [], body.get("tool_choice")
    for index, tool in enumerate(_objects(body.get("tools"), "tools")):
        where = f"tools[{index}]"
        if tool.get("type") not in (None, "custom"):
            tell("tool left out", kind=str(tool["type"])[:40])
        elif not tool.get("defer_loading"):
            known = _tool(tool, "input_schema", where)
            schema = {"type": "object", **known.parameters}
            function = {"name": known.name, "description": tool.get("description") or ""}
            listed = {"type": "function", "function": {**function, "parameters": schema}}
            found.append((listed, Tool(known.name, schema)))
    parallel = None
    if choice is not None and not isinstance(choice, Mapping):
        raise invalid("tool_choice", "expected an object")
    if choice is not None:
        parallel = not choice.get("disable_parallel_tool_use", False)
        kind = choice.get("type")
        words = {"auto": "auto", "any": "required", "none": "none"}
        if kind != "tool" and kind not in words:
            raise invalid("tool_choice.type", f"expected auto, any, tool or none, got {kind!r:.40}")
        choice = {"name": choice.get("name")} if kind == "tool" else words[kind]
    return _tools(found, choice, "tool_choice", parallel)


def _flat(tool: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], Tool]:
    known = _tool(tool, "parameters", where)
    function = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key)}
    return {"type": "function", "function": function}, known


def _tools(
    found: Sequence[tuple[Mapping[str, Any], Tool]], choice: Any, param: str, parallel: Any
) -> Tools:
    listed, tools = [one for one, _ in found], [tool for _, tool in found]
    names = [tool.name for tool in tools]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise invalid("tools", f"the name {repeated!r} is given twice")
    if not isinstance(parallel, bool | None):
        raise invalid("parallel_tool_calls", "expected true or false")
    constraint = None
    if isinstance(choice, Mapping):
        if choice["name"] not in names:
            raise invalid(param, f"{choice['name']!r:.140} is not among the tools given")
        constraint = Constraint("tools", required=True, forced=choice["name"])
    elif choice in ("required", "any"):
        if not tools:
            raise invalid(param, f"{choice} needs at least one function in tools")
        constraint = Constraint("tools", required=True)
    elif choice == "none":
        return Tools(listed)
    elif choice not in (None, "auto"):
        raise invalid(param, f"expected auto, required, none or a function, got {choice!r:.40}")
    return Tools(listed, tools, constraint, parallel is not False)


def _objects(value: Any, param: str) -> Sequence[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(param, f"expected a list, got {type(value).__name__}")
    for index, one in enumerate(value):
        if not isinstance(one, Mapping):
            raise invalid(f"{param}[{index}]", "expected an object")
    return value


def _tool(function: Mapping[str, Any], key: str, where: str) -> Tool:
    name, parameters = function.get("name"), function.get(key)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(f"{where}.name", "expected 1 to 128 letters, digits or any of _ . : / -")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise invalid(f"{where}.{key}", "expected a JSON schema, an object")
    return Tool(name, parameters or {})
