"""Whether code that a result measured has changed since; comments and docstrings do not count."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "conf")
# What only composes, starts, reads or compares runs decides no figure of a step.
AROUND = ("compare", "config", "launch", "legality", "processes.py", "record/reading", "sweep")
STEP = (*CODE, *(f":!src/tandem/{place}" for place in AROUND))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def list_changes(measured: str, paths: Sequence[str]) -> list[str]:
    """Files below these paths whose code, as it is here, differs from that of the measured commit.

    All of them if that commit is unknown here, because it was never merged unchanged, or if it had
    changes (`+`), which nobody kept.
    """
    if not git("rev-parse", "--verify", "--quiet", f"{measured}^{{commit}}", check=False):
        return git("ls-files", "--", *paths).split()
    touched = git("diff", "--no-renames", "--name-only", measured, "--", *paths).split()
    touched += git("ls-files", "--others", "--exclude-standard", "--", *paths).split()
    return [name for name in touched if code(measured, name) != code_here(name)]


def commit_here() -> str:
    """The commit to be measured, with + if code has changed since."""
    dirty = git("status", "--porcelain", "--", *CODE)
    return git("rev-parse", "--short", "HEAD") + ("+" if dirty else "")


@cache
def code(commit: str, name: str) -> str:
    """The content of a file at a commit without comments and docstrings; "" if it is missing."""
    return without_words(git("show", f"{commit}:{name}", check=False), name)


def code_here(name: str) -> str:
    """The same of a file in the working tree."""
    path = ROOT / name
    return without_words(path.read_text().strip() if path.exists() else "", name)


def without_words(text: str, name: str) -> str:
    read = {".py": without_docstrings, ".yaml": without_comments}
    return read.get(Path(name).suffix, str)(text)


def without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def without_comments(text: str) -> str:
    """The values, and the comment that Hydra reads: `# @package`."""
    package = re.findall(r"^# *@package.*$", text, re.M)
    return repr((package, yaml.safe_load(text)))


def git(*line: str, check: bool = True) -> str:
    done = subprocess.run(["git", *line], cwd=ROOT, capture_output=True, text=True, check=check)
    return done.stdout.strip()
