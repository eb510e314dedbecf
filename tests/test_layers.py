"""Imports point down through five layers, and heavy libraries stay where they belong.

docs/architecture.md describes these layers.
"""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "tandem"
# Each layer may import those above it in this table, and within a layer those to its left.
LAYERS = {
    "foundation": "stop progress contracts rng types processes threads distributed hub remote "
    "metrics experience",
    "mathematics": "dynamics advantages losses",
    "parts": "data rewards environments policies algorithm",
    "runs": "evaluation settings record training",
    "programs": "registry legality config compare sweep launch __init__ reward_server __main__",
}
ORDER = {
    name: number
    for number, name in enumerate(name for names in LAYERS.values() for name in names.split())
}
HOMES = {
    "lightning": {"training", "launch"},
    "transformers": {"hub", "policies", "rewards", "environments"},
    "peft": {"policies"},
    "diffusers": {"policies"},
    "wandb": {"record"},
    "wandb_workspaces": {"compare"},
    "matplotlib": {"record", "compare"},
    "PIL": {"data", "record", "rewards", "compare"},
    "httpx": {"remote"},
    "gymnasium": {"environments"},
    "hydra": {"config", "registry", "sweep", "launch"},
    "omegaconf": {"config", "registry", "sweep", "launch"},
}
MOST_MODULES = 10  # at the top of the package
FILES = sorted(SRC.rglob("*.py"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def imports_of(path: Path) -> set[str]:
    """Dotted names, including imports inside functions and for type checkers."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def test_imports_point_down():
    wrong = {
        f"{path.relative_to(SRC)} imports {name}"
        for path in FILES
        for name in imports_of(path)
        if name.startswith("tandem.")
        and (other := name.split(".")[1]) in ORDER
        and other != room_of(path)
        and ORDER[other] > ORDER[room_of(path)]
    }
    assert wrong == set()


def test_heavy_libraries_stay_in_their_corner():
    wrong = {
        f"{path.relative_to(SRC)} imports {name}"
        for path in FILES
        for name in imports_of(path)
        if room_of(path) not in HOMES.get(name.split(".")[0], {room_of(path)})
    }
    assert wrong == set()


def test_every_room_has_a_layer():
    assert {room_of(path) for path in FILES} == set(ORDER)


def test_few_modules_stand_at_the_top():
    assert len([path for path in SRC.glob("*.py") if path.stem[:2] != "__"]) <= MOST_MODULES


def test_the_page_draws_these_layers():
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = dict(re.findall(r"^\| \*\*(\w+)\*\* \| `([^|]+)` \|", page, re.M))
    assert {name: set(rooms.split("` `")) for name, rooms in drawn.items()} == {
        name: {room for room in rooms.split() if room[0] != "_"} for name, rooms in LAYERS.items()
    }


def test_nothing_unpickles_or_evaluates():
    forbidden = {"eval", "exec", "compile", "pickle", "dill", "cloudpickle", "torch.load"}
    for path in FILES:
        calls = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
        assert not calls & forbidden, path
        assert not {n.split(".")[0] for n in imports_of(path)} & forbidden, path
