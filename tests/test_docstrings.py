"""The rule for public docstrings, and that 95 % of them keep it (benchmarks/docstrings.py)."""

import ast
import re
from pathlib import Path

import pytest

from benchmarks.docstrings import Public, publics, share

FEWEST = 95.0  # percent
SRC = Path(__file__).parents[1] / "src" / "tandem"
RIDDLE = re.compile(r"(What|Where|Who|Whoever|Whether|How|Which|When|Why|From)\b")


def lacks(source, doc=""):
    """What the docstring of one definition does not state."""
    return Public("place", ast.parse(source).body[0], doc).lacks


@pytest.mark.parametrize(
    ("source", "doc", "lacking"),
    [
        ("def f(x): return x", "", []),  # name and body suffice
        ("def f(x):\n    y = x\n    return y", "", ["docstring"]),
        ("class A: pass", "", ["docstring"]),
        ("def f(x: Tensor) -> int: return 1", "", ["docstring"]),
        ("def f(x: Tensor) -> int: return 1", "The length of x.", ["shapes"]),
        ("def f(x: Tensor) -> int: return 1", "The length of x [B].", []),
        ("def f() -> dict[str, Tensor]: return {}", "Each a scalar.", []),
        ("def f(x):\n    if x: raise ValueError('no')", "Refuses x.", []),
        ("def f(x):\n    if x: raise ValueError('no')", "Something about x.", ["errors"]),
        ("def f(x):\n    def g(): raise ValueError('no')\n    return g", "A function.", []),
        ("def f(timeout): return 1", "Wait for it.", ["seconds"]),
        ("def f(timeout): return 1", "Wait for so many seconds.", []),
        ("def gaussian_kl(x) -> float: return 1.0", "The KL.", ["nats"]),
        ("@register_kl(reads={'x'})\ndef f(x): return x", "A KL.", ["source"]),
        ("@register_kl\ndef f(x): return x", "A KL (arXiv:2402.03300).", []),
        ("@register_kl\ndef f(x): return x", "A KL. Tandem's own.", []),
    ],
)
def test_a_docstring_says_what_the_definition_asks_for(source, doc, lacking):
    assert lacks(source, doc) == lacking


def test_public_docstrings_give_shapes_units_errors_and_sources():
    found = publics()
    lacking = [f"{one.place} ({', '.join(one.lacks)})" for one in found if one.lacks]
    assert len(found) > 2000
    assert share(found) >= FEWEST, f"python benchmarks/docstrings.py --all; {lacking[:20]}"


def test_the_mathematics_keeps_the_rule_without_exception():
    rooms = ("tandem.advantages.", "tandem.losses.", "tandem.dynamics.")
    assert not [one.place for one in publics() if one.place.startswith(rooms) and one.lacks]


def test_a_module_s_docstring_opens_with_the_noun_that_it_is():
    texts = {path: ast.get_docstring(ast.parse(path.read_text())) for path in SRC.rglob("*.py")}
    assert not [path.name for path, text in texts.items() if text and RIDDLE.match(text)]
