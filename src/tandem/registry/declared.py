"""Built-in options, read from source code without importing it.

A decorator of `tandem.contracts` directly above a `def` or `class` registers a component. The
option consists of its name, the defaults of its keywords and the comment above the decorator.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from tandem.contracts import declare, registration
from tandem.registry.nodes import Node, groups_offering, node_of

Definition = ast.FunctionDef | ast.ClassDef

PACKAGE = Path(__file__).parents[1]
# Groups whose options are files, because they choose options of other groups.
IN_FILES = ("dynamics", "rollout", "data", "model", "model/family", "reward", "environment")
GROUPS = {
    name: value.group
    for name, value in vars(registration).items()
    if isinstance(value, registration.Registrar)
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option as its decorator declares it: its node and a line of help."""

    node: Node
    help: str  # the comment above the decorator, or the first line of the docstring


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package, parsed."""

    name: str
    text: str
    tree: ast.Module
    paths: dict[str, str] = field(default_factory=dict)  # of functions defined or imported in it
    constants: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.tree.body:
            match node:
                case ast.ImportFrom(module=home, names=names):
                    self.paths.update({x.asname or x.name: f"{home}.{x.name}" for x in names})
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    self.paths[name] = f"{self.name}.{name}"
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.constants[name] = value

    def value(self, default: ast.expr) -> Any:
        """A default as a YAML value; a function becomes the node that binds it."""
        if isinstance(default, ast.Name):
            if default.id in self.constants:
                return ast.literal_eval(self.constants[default.id])
            return {"_target_": self.paths[default.id], "_partial_": True}
        return ast.literal_eval(default)


@functools.cache
def options() -> Mapping[tuple[str, str], Option]:
    """(group, name) -> option, for all groups whose options are made from signatures."""
    found: dict[tuple[str, str], Option] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "\n@register_" in text:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found.update(_options_in(Module(".".join(parts), text, ast.parse(text))))
    return found


def init_of(node: Definition) -> list[ast.FunctionDef]:
    """The `__init__` of a class, if it defines one. A dataclass has none: its option is a file."""
    match node:
        case ast.ClassDef(body=body):
            return [x for x in body if isinstance(x, ast.FunctionDef) and x.name == "__init__"]
    return []


def _facts(call: ast.Call, module: Module) -> dict[str, ast.expr]:
    """The facts that a decorator declares, including those of `**SHARED`."""
    said = [(keyword.arg, keyword.value) for keyword in call.keywords]
    return dict(_expand_facts(said, module))


def _expand_facts(
    said: Iterable[tuple[str | None, ast.expr]], module: Module
) -> Iterator[tuple[str, ast.expr]]:
    for name, fact in said:
        if name is not None:
            yield name, fact
            continue
        shared = module.constants[fact.id]
        names = [None if key is None else ast.literal_eval(key) for key in shared.keys]
        yield from _expand_facts(zip(names, shared.values, strict=True), module)


def _options_in(module: Module) -> Iterator[tuple[tuple[str, str], Option]]:
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef) or init_of(node):
            for decorator in node.decorator_list:
                yield from _option_of(node, decorator, module)


def _option_of(
    node: Definition, decorator: ast.expr, module: Module
) -> Iterator[tuple[tuple[str, str], Option]]:
    bare = isinstance(decorator, ast.Name)
    call = ast.Call(decorator, [], []) if bare else decorator
    match call:
        case ast.Call(func=ast.Name(id=registrar)) if registrar in GROUPS:
            group = GROUPS[registrar]
        case _:
            return
    if group not in IN_FILES:
        name = ast.literal_eval(call.args[0]) if call.args else node.name
        facts = _facts(call, module)
        read = {
            fact: module.value(facts[fact]) for fact in ("units", "clip_scale") if fact in facts
        }
        made = node_of(group, name, declare(**read)(_stub(node, module)))
        option = Option(made, _help(node, decorator, module))
        yield from (((place, name), option) for place in groups_offering(group))


def _help(node: Definition, decorator: ast.expr, module: Module) -> str:
    above = module.text.splitlines()[decorator.lineno - 2]
    if above.startswith("# "):
        return above.removeprefix("# ")
    return (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")


def _stub(node: Definition, module: Module) -> Callable:
    """A stand-in for a component with its name, module and signature, but no code."""
    if isinstance(node, ast.ClassDef):
        made: Any = type(node.name, (), {})
        parameters = [p for init in init_of(node) for p in _parameters(init, module)][1:]
    else:
        made = lambda: None  # noqa: E731
        parameters = list(_parameters(node, module))
    made.__module__, made.__qualname__ = module.name, node.name
    made.__signature__ = Signature(parameters)
    return made


def _parameters(node: ast.FunctionDef, module: Module) -> Iterator[Parameter]:
    given, empty = node.args, Parameter.empty
    by_place = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(by_place) - len(given.defaults)), *given.defaults]
    kinds = [Parameter.POSITIONAL_OR_KEYWORD] * len(by_place)
    kinds += [Parameter.KEYWORD_ONLY] * len(given.kwonlyargs)
    every = zip([*by_place, *given.kwonlyargs], [*defaults, *given.kw_defaults], kinds, strict=True)
    for argument, default, kind in every:
        value = empty if default is None else module.value(default)
        yield Parameter(argument.arg, kind, default=value)
