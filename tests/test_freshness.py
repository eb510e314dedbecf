"""Results of long checks: which code changes make them stale."""

import pytest

from benchmarks import freshness

FUNCTION = '''"""The module."""


def double(x):
    """Twice x."""
    return 2 * x  # exact
'''
PRESET = "# @package _global_\n# A preset\nrate: 0.1\n"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A repository with one function and one preset; its first commit is the measured one."""
    monkeypatch.setattr(freshness, "ROOT", tmp_path)
    freshness.code.cache_clear()
    freshness.git("init", "-q")
    write(tmp_path, FUNCTION, PRESET)
    return tmp_path


def write(root, function, preset):
    for folder, name, text in (("src", "a.py", function), ("conf", "a.yaml", preset)):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / name).write_text(text)
    freshness.git("add", ".")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    freshness.git(*identity, "commit", "-q", "--allow-empty", "-m", "a")


def change(root, function=FUNCTION, preset=PRESET):
    measured = freshness.git("rev-parse", "HEAD")
    write(root, function, preset)
    return freshness.list_changes(measured, freshness.CODE)


def test_comments_and_docstrings_leave_a_result_fresh(kept):
    function = FUNCTION.replace("Twice x.", "2x.").replace("# exact", "# no rounding")
    assert change(kept, function, PRESET.replace("# A preset", "# The preset")) == []


@pytest.mark.parametrize(
    ("function", "preset", "stale"),
    [
        (FUNCTION.replace("2 * x", "3 * x"), PRESET, ["src/a.py"]),
        (FUNCTION, PRESET.replace("0.1", "0.2"), ["conf/a.yaml"]),
        (FUNCTION, PRESET.replace("_global_", "algorithm"), ["conf/a.yaml"]),
    ],
)
def test_changed_code_and_values_make_a_result_stale(kept, function, preset, stale):
    assert change(kept, function, preset) == stale


@pytest.mark.parametrize(
    ("place", "stale"), [("policies", True), ("record", True), ("record/reading", False)]
)
def test_figures_of_a_step_are_of_what_a_step_runs(kept, place, stale):
    measured = freshness.git("rev-parse", "HEAD")
    file = kept / "src" / "tandem" / place / "b.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    for _ in ("untracked", "committed"):
        found = freshness.list_changes(measured, freshness.STEP)
        assert found == [f"src/tandem/{place}/b.py"] * stale
        write(kept, FUNCTION, PRESET)


def test_a_new_file_makes_a_result_stale(kept):
    (kept / "src" / "b.py").write_text("x = 1\n")
    assert change(kept) == ["src/b.py"]


def test_every_file_is_stale_where_the_measured_commit_is_unknown(kept):
    assert freshness.list_changes("0123abcd", freshness.CODE) == ["conf/a.yaml", "src/a.py"]


def test_a_change_that_is_not_committed_makes_a_result_stale_and_unknown(kept):
    measured = freshness.git("rev-parse", "HEAD")
    assert freshness.commit_here() == freshness.git("rev-parse", "--short", "HEAD")
    (kept / "src" / "a.py").write_text(FUNCTION.replace("2 * x", "3 * x"))
    assert freshness.list_changes(measured, freshness.CODE) == ["src/a.py"]
    assert freshness.commit_here() == f"{measured[:7]}+"
    (kept / "src" / "a.py").write_text(FUNCTION)
    (kept / "src" / "b.py").write_text("x = 1\n")
    assert freshness.list_changes(measured, freshness.CODE) == ["src/b.py"]
    every = freshness.git("ls-files").split()
    assert freshness.list_changes(f"{measured}+", freshness.CODE) == every
