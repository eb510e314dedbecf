"""The check of public docstrings: `python benchmarks/docstrings.py [--all]` lists what is missing.

A function, class or method is public if it has no leading underscore and is at the top of a module
or of a public class. Its docstring, or that of the method it implements (of a base class, or of a
protocol by name and parameters), must exist and state the following. A body of one statement needs
none, unless one of these rules applies:

* shapes, if tensors go in or out: `Tensor` in the signature requires a `[...]` or `scalar`;
* units: a number called timeout, pause or ..._seconds requires seconds; kl, entropy, logp or
  log_ratio as a tensor or a float requires nats;
* errors: a `raise` in the body requires "raise" or "refuse";
* the source of a formula: an option of an algorithm or a dynamics requires an arXiv number, an
  address, "Source:" or "Tandem's own".
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "tandem"
SECONDS = re.compile(r"(^|_)(timeout|pause)$|_seconds$")
NATS = re.compile(r"(^|_)(kl|entropy|logp|log_ratio)($|_of$)")
SAYS = {
    "shapes": re.compile(r"\[[^\]]*\]|\bscalars?\b"),
    "seconds": re.compile(r"\bseconds?\b|\bs\b"),
    "nats": re.compile(r"\bnats\b"),
    "errors": re.compile(r"\b[Rr](ais|efus)"),
    "source": re.compile(r"arXiv:\d|https?://|Source:|Tandem's own"),
}
FORMULAS = re.compile(
    r"register_(policy_loss|adv_estimator|weights|correction|old_logprobs|kl|dynamics"
    r"|noise_schedule|stochastic_steps|window_pace|likelihood|step_\w+|distillation_target|centre"
    r"|tilt|fit|error_weighting|level_candidates|query)\b"
)
Told = Mapping[tuple[str, ...], str]  # name and parameters of a protocol's method -> docstring
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Public:
    """A public function, class or method."""

    place: str  # dotted, below the package
    node: Definition
    doc: str

    @property
    def lacks(self) -> list[str]:
        """What the docstring must state and does not."""
        wanted = list(requirements_of(self.node))
        if not self.doc:
            return ["docstring"] if wanted or not is_plain(self.node) else []
        return [what for what in wanted if SAYS[what].search(self.doc) is None]


@functools.cache
def publics(package: Path = PACKAGE) -> list[Public]:
    """The public definitions of a package, in the order of its files."""
    trees = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        trees[module] = ast.parse(path.read_text(encoding="utf-8"))
    told = dict(entry for tree in trees.values() for entry in documented_methods(tree))
    return [one for module, tree in trees.items() for one in publics_in(tree, module, (), told)]


def publics_in(
    tree: ast.Module | ast.ClassDef, module: str, inside: tuple[str, ...], told: Told
) -> Iterator[Public]:
    """The public definitions of a module or a class; `inside`: the classes around it."""
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            names = (*inside, node.name)
            doc = ast.get_docstring(node)
            if doc is None and inside and not isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in tree.bases]
                above = (told.get((base, node.name)) for base in bases)
                doc = told.get(call_of(node)) or next(filter(None, above), None)
                doc = doc or (inherited_docstring(module, names) if bases else None)
            yield Public(".".join([module, *names]), node, doc or "")
            if isinstance(node, ast.ClassDef):
                yield from publics_in(node, module, names, told)


def documented_methods(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], str]]:
    """The methods of a module's classes, by class and name; of a protocol also by parameters."""
    for node in tree.body:
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and (doc := ast.get_docstring(method)):
                yield (node.name, method.name), doc
                if "Protocol" in map(ast.unparse, node.bases):
                    yield call_of(method), doc


def call_of(method: ast.FunctionDef) -> tuple[str, ...]:
    """The name of a method and its parameters, which identify a method of a protocol."""
    given = method.args
    return (method.name, *(one.arg for one in [*given.args, *given.kwonlyargs]))


def inherited_docstring(module: str, names: tuple[str, ...]) -> str | None:
    """The docstring of the method that this method implements."""
    try:
        return inspect.getdoc(reduce(getattr, names, importlib.import_module(module)))
    except (ImportError, AttributeError):  # a library that is not here, or another checkout
        return None


def requirements_of(node: Definition) -> Iterator[str]:
    """What the signature, the body and the decorators of a definition require of its docstring."""
    if any(FORMULAS.search(ast.unparse(one)) for one in node.decorator_list):
        yield "source"
    if isinstance(node, ast.ClassDef):
        return
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    given = [ast.unparse(one.annotation) for one in arguments if one.annotation is not None]
    result = "" if node.returns is None else ast.unparse(node.returns)
    if any(re.search(r"\bTensor\b", one) for one in (*given, result)):
        yield "shapes"
    if any(SECONDS.search(one.arg) for one in arguments):
        yield "seconds"
    if NATS.search(node.name) and re.search(r"\b(Tensor|float)\b", result):
        yield "nats"
    if not node.name.startswith("refuse_") and any(map(is_refusal, statements(node))):
        yield "errors"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Definition | ast.Lambda):
            yield child
            yield from statements(child)


def is_refusal(node: ast.AST) -> bool:
    """Whether it raises a new exception, not the one that it caught."""
    return isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)


def is_plain(node: Definition) -> bool:
    """Whether it is a function of one statement."""
    return not isinstance(node, ast.ClassDef) and len(node.body) == 1


def share(found: list[Public]) -> float:
    """The percentage of definitions that lack nothing."""
    return 100 * sum(not one.lacks for one in found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="list everything that is missing")
    chosen = parser.parse_args()
    found = list(publics())
    lacking = [one for one in found if one.lacks]
    if chosen.all:
        for one in lacking:
            print(f"{one.place}: {', '.join(one.lacks)}")
    counts = Counter(what for one in lacking for what in one.lacks)
    listed = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    without = sum(not one.doc for one in found)
    print(f"{share(found):.1f} % of {len(found)} say all they must; lacking: {listed or 'nothing'}")
    print(f"{100 - 100 * without / len(found):.1f} % have a docstring, {without} do not")


if __name__ == "__main__":
    main()
