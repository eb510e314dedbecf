"""Meanings of keys, read from the functions that take them and the files that set them."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tandem.registry.declared import init_of

Comments = Mapping[int, tuple[str, bool]]  # line -> comment, whether it has the line to itself
Places = list[tuple[str, int]]  # names with their lines, in order
# An entry of a defaults list that includes a file of the same folder.
INCLUDED = re.compile(r"^  - (_\w+)(?:@([\w.]+))?$", re.M)


@functools.cache
def read_meanings(function: Callable) -> dict[str, str]:
    """name -> the comment above or beside a parameter or field of a function or class, else the
    sentence of the docstring that names it."""
    found: dict[str, str] = {}
    for owner in reversed(inspect.getmro(function)) if inspect.isclass(function) else [function]:
        if owner.__module__ != "builtins":
            found |= _read(owner)
    return found


def _read(owner: Callable) -> dict[str, str]:
    try:
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(owner)))
    except (OSError, TypeError):  # made without a source, such as in a session or by C code
        return {}
    definition, comments = ast.parse(text).body[0], read_comments(text)
    places, end = _places(definition)
    starts = [line for _, line in places] + [end + 1]
    said = {
        name: " ".join(comments_at(line, starts[number + 1], comments))
        for number, (name, line) in enumerate(places)
    }
    docs = [inspect.getdoc(owner) or "", *(ast.get_docstring(x) or "" for x in init_of(definition))]
    return {
        name: meaning for name in said if (meaning := said[name] or _find("\n".join(docs), name))
    }


def read_comments(text: str) -> Comments:
    """The comments of a Python source, by line."""
    return {
        token.start[0]: (token.string.lstrip("# "), not token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }


def comments_at(line: int, until: int, comments: Comments) -> Iterator[str]:
    """The comment lines right above a line, and those behind the code from it to `until`."""
    above = line - 1
    while above in comments and comments[above][1]:
        above -= 1
    for at in range(above + 1, line):
        yield comments[at][0]
    for at in range(line, until):
        if at in comments and not comments[at][1]:
            yield comments[at][0]


def _places(node: ast.AST) -> tuple[Places, int]:
    """The parameters or fields of a definition, and the line where the last one ends."""
    if isinstance(node, ast.ClassDef) and not init_of(node):
        fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
        places = [(x.target.id, x.lineno) for x in fields]
        return places, fields[-1].end_lineno if fields else 0
    own = next(iter(init_of(node)), node)
    given = [*own.args.posonlyargs, *own.args.args, *own.args.kwonlyargs]
    return [(x.arg, x.lineno) for x in given], own.body[0].lineno - 1


def _find(doc: str, name: str) -> str:
    """The entry of a docstring, `name: meaning` or `name (type): meaning`, else the sentence with
    the name in backticks, else the first sentence, often a formula, if it has the name."""
    line = re.search(rf"^ *{name} \([^\n]*\):\s+(.+?)(?=\n *\w+ \(|\n\n|\Z)", doc, re.M | re.S)
    text = " ".join(doc.split())
    entry = line or re.search(rf"(?:^|[.;] )`?{name}`?: (.+?)(?:[.;](?= |$)|$)", text)
    sentences = re.split(r"(?<=\.) (?=[A-Z`])", text)
    naming = [one for one in sentences if f"`{name}`" in one]
    naming += [one for one in sentences[:1] if re.search(rf"\b{name}\b", one)]
    said = " ".join(entry[1].split()) if entry else " ".join(naming[:1])
    return re.split(r"\.(?: |$)| \(default: ", said)[0]


def read_file_comments(dotted: str, chosen: Mapping[str, str | None], conf: Path) -> dict[str, str]:
    """dotted key -> the comment behind it in the files of the configuration that may set `dotted`.

    chosen: group, as a/b -> its option.
    """
    files = [(conf / "config.yaml", "")]
    for group, option in chosen.items():
        prefix = group.replace("/", ".")
        if f"{dotted}.".startswith(f"{prefix}."):
            files += _list_included(conf / group / f"{option}.yaml", prefix)
    found: dict[str, str] = {}
    for path, prefix in files:
        found |= _collect_comments(path.read_text(), prefix)
    return found


def _list_included(path: Path, prefix: str) -> Iterator[tuple[Path, str]]:
    """The files that a file includes, such as `_flow_policy@model.picture`, and the file itself,
    each with the place of its keys. None of a part that is registered without a file."""
    if path.is_file():
        for name, place in INCLUDED.findall(path.read_text()):
            yield from _list_included(path.with_name(f"{name}.yaml"), place or prefix)
        yield path, prefix


def _collect_comments(text: str, prefix: str) -> dict[str, str]:
    found, above = {}, [] if not prefix or "@package _global_" in text else prefix.split(".")
    stack: list[tuple[int, str]] = []
    for row in text.splitlines():
        key = re.match(r"( *)(\w+):([^#]*)(?:# (.+))?$", row)
        if key is None:
            continue
        depth = len(key[1])
        stack = [*(one for one in stack if one[0] < depth), (depth, key[2])]
        if key[4]:
            found[".".join([*above, *(name for _, name in stack)])] = key[4]
    return found
