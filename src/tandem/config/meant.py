"""Suggestions for a choice that names a hub model, a dataset or a file instead of an option."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from tandem.config.own_targets import conf_folder
from tandem.contracts.parts import expand_home

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # of a model or a dataset of the hub
READERS = {".jsonl": "jsonl", ".txt": "text"}
TABLES = (".csv", ".parquet")  # read through their folder


def suggest(group: str, name: str, alike: Sequence[str] = ()) -> str | None:
    """The message that suggests other words, after options that are spelt alike; None: there is no
    suggestion."""
    find = {"model": _model, "data": _data, "reward": _reward}.get(group)
    words = None if find is None else find(name)
    options = f"there are {', '.join(alike)}, or " if alike else ""
    return None if words is None else f"{group}={name} is not an option; {options}write {words}"


def is_path(name: str) -> bool:
    """Whether a name is a path, not a misspelt option."""
    return "/" in name or Path(name).suffix in (*READERS, *TABLES, ".py")


def _model(name: str) -> str | None:
    own = [
        path for path in sorted((conf_folder() / "model").glob("[!_]*.yaml")) if _loads(path, name)
    ]
    if own:
        return " or ".join(f"model={path.stem}" for path in own)
    is_there = expand_home(name).is_dir()
    return f"model=hf model.path={name}" if is_there or NAME.fullmatch(name) else None


def _loads(preset: Path, name: str) -> bool:
    """Whether a preset is this model of the hub."""
    return f"\n  path: {name}\n" in preset.read_text(encoding="utf-8")


def _data(name: str) -> str | None:
    path = expand_home(name)
    if (reader := READERS.get(path.suffix)) is not None:
        return f"data={reader} data.path={name}"
    if path.suffix in TABLES:
        folder = f"data.name={Path(name).parent} data.split.subset=null"
        return f"data=hub {folder} data.columns.prompt=COLUMN data.columns.answer=COLUMN"
    if path.is_dir():
        return f"data=folder data.path={name}"
    if not NAME.fullmatch(name):
        return None
    return f"data=hub data.name={name if '/' in name else f'OWNER/{name}'}"


def _reward(name: str) -> str | None:
    path = Path(name)
    if path.suffix != ".py":
        return None
    here = not path.is_absolute() and path.parts[0] not in ("..", "~")
    module = ".".join(path.with_suffix("").parts).lstrip(".") if here else path.stem
    own = ",".join(_list_rewards(path)) if path.is_file() else ""
    chosen = f"reward=[{own}]" if "," in own else f"reward={own or 'NAME'}"
    told = "" if own else ", where NAME is one of its functions with @register_reward"
    return f"plugins=[{module}] {chosen}{told}{'' if here else f', in the folder {path.parent}'}"


def _list_rewards(path: Path) -> list[str]:
    """The rewards that a file registers, found without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeError):
        return []  # loading it as a plugin reports the error
    named = [
        (node.name, decorator) for node in tree.body if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    ]  # fmt: skip
    return [_name(name, one) for name, one in named if "register_reward" in ast.unparse(one)]


def _name(function: str, decorator: ast.expr) -> str:
    match decorator:
        case ast.Call(args=[ast.Constant(value=name), *_]):
            return name
    return function
