"""Parameters of functions and classes, read from their source: type, default, bound, comment."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from generate.repository import ROOT

from tandem.config.meanings import Comments, comments_at, read_comments

PACKAGE = ROOT / "src"
REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str = ""
    default: str = REQUIRED
    bound: str = ""
    meaning: str = ""


@functools.cache
def parameters(target: str) -> Mapping[str, Parameter]:
    """Keywords of what a dotted path names; none where it is no code of this repository."""
    found = _definition(target)
    if found is None:
        return {}
    node, lines = found
    return {one.name: one for one in _of(node, lines)}


@functools.cache
def docstring(target: str) -> str:
    """The first paragraph of what a dotted path names."""
    found = _definition(target)
    said = (ast.get_docstring(found[0]) or "") if found else ""
    return " ".join(said.partition("\n\n")[0].split())


def _definition(target: str) -> tuple[ast.AST, Comments] | None:
    module, _, name = target.rpartition(".")
    path = PACKAGE / (module.replace(".", "/") + ".py")
    if not path.exists():
        path = PACKAGE / module.replace(".", "/") / "__init__.py"
    if not module.startswith("tandem") or not path.exists():
        return None
    tree, comments = _parse(path)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node, comments
        if isinstance(node, ast.ImportFrom) and any(
            (x.asname or x.name) == name for x in node.names
        ):
            return _definition(f"{node.module}.{name}")
    return None


@functools.cache
def _parse(path: Path) -> tuple[ast.Module, Comments]:
    """The tree, and line -> (comment, whether it has the line to itself)."""
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), read_comments(text)


def _of(node: ast.AST, comments: Comments) -> Iterator[Parameter]:
    if isinstance(node, ast.ClassDef):
        init = next(
            (x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"), None
        )
        if init is None:
            fields = [x for x in node.body if isinstance(x, ast.AnnAssign) and _is_given(x)]
            yield from _parameters(
                [(x.target.id, x.annotation, x.value, x.lineno) for x in fields],
                fields[-1].end_lineno if fields else 0,
                comments,
            )
            return
        node = init
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    named = [(x.arg, x.annotation, value, x.lineno) for x, value in pairs]
    yield from _parameters(named, node.body[0].lineno - 1, comments)


def _is_given(field: ast.AnnAssign) -> bool:
    """Whether a constructor takes it: not a constant of the class, nor what is computed."""
    text = "" if field.value is None else ast.unparse(field.value)
    return "init=False" not in text and "ClassVar" not in ast.unparse(field.annotation)


def _parameters(
    named: list[tuple[str, ast.expr | None, ast.expr | None, int]],
    end: int,
    comments: Comments,
) -> Iterator[Parameter]:
    starts = [line for *_, line in named] + [end + 1]
    for number, (name, annotation, value, line) in enumerate(named):
        kind, bound = _split_annotation(annotation)
        yield Parameter(
            name=name,
            type=kind,
            default=_default(value),
            bound=bound,
            meaning=" ".join(comments_at(line, starts[number + 1], comments)),
        )


def _split_annotation(annotation: ast.expr | None) -> tuple[str, str]:
    """The type and the bound that an annotation says."""
    if annotation is None:
        return "", ""
    if "Size" in (words := ast.unparse(annotation)):
        return words.replace("Size", "int"), "positive"
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            kind, *limits = node.slice.elts
            whole = ast.unparse(annotation).replace(ast.unparse(node), ast.unparse(kind))
            return whole, ", ".join(map(ast.unparse, limits))
    return ast.unparse(annotation), ""


def _default(value: ast.expr | None) -> str:
    if value is None:
        return REQUIRED
    text = ast.unparse(value)
    if text == "None":
        return "null"
    return "…" if text.startswith("field(") else text.strip("'\"")
