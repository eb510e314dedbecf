"""Published bugs and our own can still be planted, and the tests detect each."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import mutations
from benchmarks.mutations import Mutant, Refused, check, read, select, state

ROOT = Path(__file__).parents[1]
MUTANTS = read()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_sources_and_names_its_origin(mutant):
    check(mutant, ROOT)
    assert mutant.issue is None or re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", mutant.issue)
    compile(mutant.plant((ROOT / mutant.path).read_text()), mutant.path, "exec")


def test_no_two_mutants_are_one():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_a_text_that_is_gone_is_an_error():
    mutant = Mutant(
        name="gone",
        issue="a/b#1",
        says="",
        file="losses/kl.py",
        old="no such line",
        new="",
        tests=(),
    )
    with pytest.raises(Refused, match="gone: its text occurs 0 times"):
        check(mutant, ROOT)


def test_an_unknown_name_is_an_error():
    with pytest.raises(Refused, match="no mutant is called nobody"):
        select(["nobody"])


@pytest.mark.parametrize(
    ("changed", "said"), [("benchmarks/results/gpu.md", ""), ("src/a.py", " with changes")]
)
def test_only_what_is_judged_counts_as_changed(changed, said, tmp_path, monkeypatch):
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a")
    for words in (("init", "-q"), own):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / changed).parent.mkdir(parents=True)
    (tmp_path / changed).write_text("new")
    assert state(committed=False) == state(committed=True) + said
