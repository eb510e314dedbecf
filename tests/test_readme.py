"""The commands in the README and the studies are accepted."""

import re
import shlex
from pathlib import Path

import pytest
from gate import each

from tandem.config import check, compose
from tandem.sweep.swept_values import find_one_that_runs
from tandem.sweep.words import parse_sweep

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "experiments").glob("*/README.md")),
]
# They name an existing run; other tests run them.
NEED_A_RUN = ("resume=", "continue_from=", "--help")
PACKAGES = {  # of optional dependencies
    "environment=openenv": "websockets",
    "environment=gymnasium": "gymnasium",
    "environment=gymnasium_drawn": "gymnasium",
}


def commands() -> list[str]:
    """Every `python train.py ...` of an indented block, continued lines joined."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        found += re.findall(r"^ {4}python (train\.py.*)$", text, flags=re.M)
    return [command for command in found if not any(word in command for word in NEED_A_RUN)]


@pytest.mark.parametrize("command", each(9, commands()))
def test_a_command_of_the_documents_composes_and_binds(command):
    words = shlex.split(command, comments=True)[1:]
    for package in (PACKAGES[word] for word in words if word in PACKAGES):
        pytest.importorskip(package)
    overrides = [word for word in words if "=" in word or word.startswith("~")]
    if (sweep := parse_sweep(overrides, multirun="-m" in words)) is not None:
        find_one_that_runs(sweep, check)
    else:
        check(compose(overrides))


def test_the_misspelt_example_is_answered_as_the_readme_says():
    text = (ROOT / "README.md").read_text()
    command, answer = re.search(r"\$ python train\.py (\S+)\n +(.*)\n", text).groups()
    with pytest.raises(ValueError, match=re.escape(answer)):
        compose([command])


def test_every_algorithm_is_in_the_table():
    text = (DOCS / "algorithms.md").read_text()
    for path in (ROOT / "conf" / "algorithm").glob("[!_]*.yaml"):
        assert f"| `{path.stem}` |" in text
        assert f"(../conf/algorithm/{path.name})" in text


def test_the_algorithm_of_your_own_is_the_one_in_experiments():
    text, study = (ROOT / "README.md").read_text(), ROOT / "experiments" / "my_idea"
    source = (study / "__init__.py").read_text().partition('"""\n\n')[2]
    assert f"```python\n{source}```" in text
    for file in ("__init__.py", "conf/algorithm/my_idea.yaml"):
        shown = f"<!-- code: {(study / file).relative_to(ROOT)} -->"
        assert shown in (DOCS / "howto" / "algorithm.md").read_text()


def test_every_link_of_the_pages_leads_somewhere():
    broken = {
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*DOCS.rglob("*.md"), *ROOT.glob("[A-Z]*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    }
    assert broken == set()
