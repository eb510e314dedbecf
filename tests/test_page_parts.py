"""Parts that pages write into a file of one's own: the code as shown, chosen by its command."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
from gate import each
from test_first_tasks import shortened

import tandem
from tandem.config import check, compose
from tandem.record import jsonl

pytestmark = pytest.mark.usefixtures("unregistered")

DOCS = Path(__file__).parents[1] / "docs"
COMMAND = re.compile(r"tandem train plugins=\[(\w+)\] [^`\n]+")
PYTHON = re.compile(r"^(`{3,4})python\n(.*?)^\1$", re.M | re.S)
YAML = re.compile(r"`(conf/[\w/]+\.yaml)`[^\n]*\n\n```yaml\n(.*?)^```$", re.M | re.S)
TESTED = ("first_tasks", "algorithm")  # by tests of their own
NEEDS_FILES = ("model=hf", "data=jsonl", "function.path")


def commands() -> dict[str, tuple[str, str]]:
    """Page and command -> its module, and the text above it."""
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for command in COMMAND.finditer(text):
            above = text[: command.start()]
            if page.stem not in TESTED and PYTHON.search(above):
                found[f"{page.stem}: {command[0]}"] = command[1], above
    return found


COMMANDS = commands()


@pytest.fixture
def line(request, tmp_path, monkeypatch):
    """A command, in a folder with the last code and all options above it."""
    module, above = COMMANDS[request.param]
    (tmp_path / f"{module}.py").write_text(PYTHON.findall(above)[-1][1])
    for name, content in YAML.findall(above):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    sys.modules.pop(module, None)  # of another page
    yield request.param.partition(": ")[2]
    sys.modules.pop(module, None)


@pytest.mark.parametrize("line", each(3, COMMANDS), indirect=True)
def test_the_part_of_a_page_is_chosen_by_its_command(line):
    check(compose(shlex.split(line)[2:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [x for x in COMMANDS if not any(word in x for word in NEEDS_FILES)], indirect=True
)
def test_the_part_of_a_page_is_trained_by_its_command(line, tmp_path):
    # Of three steps none is among the last four tenths.
    words = [word.replace("rollout.steps=3", "rollout.steps=5") for word in shortened(line)[2:]]
    tandem.train(*words, f"run_dir={tmp_path / 'run'}")
    lines = jsonl.read(tmp_path / "run" / "metrics.jsonl")
    assert [own["reward/missing"] for own in lines if "optim/grad_norm" in own] == [0, 0]
