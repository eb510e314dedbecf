"""Modules import downwards only, and heavy libraries stay in their corner."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "tandem"
LAYERS = (
    "types contracts draws hub keys stop",
    "registry",
    "ranks budget weights groups outputs experience schedules remembered dynamics drift remote",
    "coefficients kl",
    "metrics batches",
    "readings",
    "advantages losses corrections",
    "guards objectives policies rewards data collect",
    "penalties",
    "algorithm source passes",
    "settings",
    "record",
    "shell tally",
    "module evaluation held_out_pairs",
    "callbacks",
    "legality",
    "config",
    "banner pairs made_of",
    "start",
    "assembly estimate",
    "devices",
    "run sample compare rewards/serve",
    "sweep",
    "select",
    "__init__",
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
HOMES = {
    "lightning": {"shell", "callbacks", "devices", "run"},
    "transformers": {"hub", "policies", "rewards"},
    "peft": {"policies"},
    "diffusers": {"policies"},
    "wandb": {"record"},
    "wandb_workspaces": {"compare"},
    "matplotlib": {"record", "compare"},
    "PIL": {"data", "record", "rewards", "compare"},
    "httpx": {"remote"},
    "hydra": {"config", "sweep"},
    "omegaconf": {
        *("assembly", "estimate", "config", "made_of", "run", "start", "sample", "sweep"),
    },
}
DOORS = ("rewards/serve.py",)  # what people start, though it stands beside what it serves
FILES = sorted(SRC.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Dotted names, those inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(path: Path) -> str:
    if path.relative_to(SRC).as_posix() in DOORS:
        return path.relative_to(SRC).with_suffix("").as_posix()
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_down(path):
    own = part_of(path)
    for name in imported(path):
        if not name.startswith("tandem."):
            continue
        other = name.split(".")[1]
        if other != own and other in LAYER:
            assert LAYER[other] < LAYER[own], f"{own} may not import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_heavy_libraries_stay_in_their_corner(path):
    for name in imported(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or part_of(path) in homes, f"{name} belongs to {homes}"


def test_every_module_has_a_layer():
    assert {part_of(path) for path in FILES} == set(LAYER)


def test_nothing_unpickles_or_evaluates():
    forbidden = ("eval", "exec", "compile", "pickle", "dill", "cloudpickle", "torch.load")
    for path in FILES:
        calls = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        assert not calls & set(forbidden), path
        assert not {n.split(".")[0] for n in imported(path)} & set(forbidden), path
