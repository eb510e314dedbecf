"""Arguments that a file leaves at the defaults of their function, which are valid keys as well.

They are read from source code, like options, without importing it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from tandem.config.plugins import ADMITTED, list_files
from tandem.config.targets import resolve
from tandem.registry.declared import PACKAGE, Definition, Module, init_of

PLAIN = (
    bool,
    int,
    float,
    str,
    type(None),
)  # types of defaults that a recorded configuration can hold


def list_left_out(node: object) -> list[str]:
    """The arguments with a default that a node leaves out."""
    if not isinstance(node, DictConfig) or "_target_" not in node:
        return []
    return [name for name in list_defaulted(str(node._get_node("_target_"))) if name not in node]


def list_left_out_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """All of a configuration, as on the command line. `prefix`: the keys above a node in it."""
    yield from (f"{prefix}{name}" for name in list_left_out(node))
    for name in node:
        inner = node._get_node(name)
        if is_open(inner):
            yield from list_left_out_keys(inner, f"{prefix}{name}.")


def is_open(node: object) -> bool:
    """Whether a node is a mapping with keys of its own: no null, no interpolation."""
    return isinstance(node, DictConfig) and not (node._is_interpolation() or node._is_none())


@functools.cache
def list_defaulted(path: str) -> tuple[str, ...]:
    """The arguments of a target that have a default, in the order of its source.

    None of a library's own, whose source is not read: `+optimizer.eps=1e-6` adds such a one.
    """
    home, _, name = path.rpartition(".")
    module = _read_module(home)
    if module is None:
        return ()
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return tuple(dict.fromkeys(_list_defaulted(node, module)))
    elsewhere = module.paths.get(name)  # a package re-exports what its modules define
    return () if elsewhere in (None, path) else list_defaulted(elsewhere)


def _list_defaulted(node: Definition, module: Module) -> Iterator[str]:
    match node:
        case ast.FunctionDef(args=given):
            yield from _list_defaults(given)
        case ast.ClassDef() if made := init_of(node):
            yield from _list_defaults(made[0].args)
        case ast.ClassDef(bases=bases, body=body):
            above = [list_defaulted(module.paths.get(ast.unparse(base), "")) for base in bases]
            if any("dataclass" in ast.unparse(made) for made in node.decorator_list):
                yield from chain(*above, filter(None, map(_given_field, body)))
            else:
                yield from next(filter(None, above), ())


def _given_field(line: ast.stmt) -> str | None:
    """The field of a record that a line defines, if it has a default that a call may replace."""
    match line:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            said = ast.unparse(line)
            return None if "ClassVar" in said or "init=False" in said else name
    return None


def _list_defaults(given: ast.arguments) -> Iterator[str]:
    by_place = [*given.posonlyargs, *given.args]
    yield from (one.arg for one in by_place[len(by_place) - len(given.defaults) :])
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    yield from (one.arg for one, default in named if default is not None)


@functools.cache
def _read_module(name: str) -> Module | None:
    """A module of Tandem's, or of a plugin, which has been imported by now."""
    file = _find_file(name)
    if file is None or not file.is_file():
        return None
    text = file.read_text(encoding="utf-8")
    return Module(name, text, ast.parse(text))


def _find_file(name: str) -> Path | None:
    if f"{name}.".startswith("tandem."):
        place = PACKAGE.parent.joinpath(*name.split("."))
        return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    admitted = any(f"{name}.".startswith(f"{home}.") for home in ADMITTED)
    files = list_files(name) if admitted else []
    return files[0] if files else None  # the module itself; its package and submodules follow


def fill_defaults(value: Any) -> Any:
    """A plain configuration in which nodes name the defaults of their targets too.

    A record that left them to the code would mean something else once a default has changed.
    """
    match value:
        case list():
            return [fill_defaults(item) for item in value]
        case dict():
            return _fill_call({name: fill_defaults(item) for name, item in value.items()})
    return value


def _fill_call(named: dict[str, Any]) -> dict[str, Any]:
    """A node with the defaults of its target, if it has one."""
    if "_target_" not in named:
        return named
    own = str(named["_target_"])
    parameters = signature(resolve(own, own)).parameters
    # A reward of another library declares its parameters by name; they are not its numbers.
    missing = (x for x in list_defaulted(own) if x not in named and x in parameters)
    defaults = {name: parameters[name].default for name in missing}
    return named | {name: x for name, x in defaults.items() if isinstance(x, PLAIN)}
