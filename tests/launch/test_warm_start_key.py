"""The name of a warm start: a hash of everything that it used, and of nothing else."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.config import compose
from tandem.launch.initial_weights import warm_configuration
from tandem.launch.warm_start_key import FILE, TANDEM, collect_inputs, reason
from tandem.registry.nodes import as_text

pytestmark = pytest.mark.usefixtures("unregistered")

LOSS = "from tandem import register_policy_loss\n@register_policy_loss\ndef mine(batch): return 0\n"
DATA = """
from tandem import register_dataset
from tandem.data.records import Data
from own_words import WORDS

@register_dataset("mine")
def words(*, seed: int) -> Data:
    return WORDS
"""
MODULES = ("own_loss", "own_data", "own_words")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in zip(MODULES, (LOSS, DATA, "WORDS = ('a',)\n"), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def start(*words):
    """The warm start of a run that trains a custom loss after imitation."""
    given = ["plugins=[own_loss,own_data]", "algorithm/loss=mine", *words]
    cfg = compose(given)
    cfg.overrides = given
    return warm_configuration(cfg)


def test_editing_a_plugin_that_the_start_does_not_use_leaves_its_name(folder):
    before = collect_inputs(start()).name
    (folder / "own_loss.py").write_text(f"{LOSS}# another idea\n")
    assert collect_inputs(start()).name == before
    assert collect_inputs(start("algorithm.kl.coef=0.1")).name == before


@pytest.mark.parametrize("edited", ["own_data.py", "own_words.py"])
def test_editing_what_it_uses_or_imports_changes_its_name(folder, edited):
    before = collect_inputs(start("data=mine"))
    (folder / edited).write_text((folder / edited).read_text() + "# edited\n")
    after = collect_inputs(start("data=mine"))
    assert after.name != before.name
    assert after.unlike(before) == [f"{edited} has changed"]


def test_text_that_looks_like_an_interpolation_is_part_of_the_name():
    cfg = compose(["warm_start=['algorithm=sft']"])
    cfg.overrides = as_text([r"rollout.stop=['<\${a b}>']"])
    assert collect_inputs(warm_configuration(cfg)).values["rollout.stop.0"] == "<${a b}>"


def test_what_lies_in_the_cache_or_around_the_run_is_no_part_of_it(folder):
    """A flow caches prompts there, and an empty text is not a path to the working directory."""
    asked = ("model=tiny_flow", "cache_dir=cache", "model.negative_prompt=''")
    given = [*asked, "warm_start=['algorithm=sft']"]
    cfg = compose(given)
    cfg.overrides = given
    before = collect_inputs(warm_configuration(cfg))
    Path("cache").mkdir()
    Path("cache/prompts").write_text("encoded")
    assert collect_inputs(warm_configuration(cfg)).name == before.name
    assert not [name for name in before.files if not name.startswith("tandem/")]


def test_a_file_of_the_home_directory_is_part_of_the_name(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    (folder / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}')
    words = ("data=jsonl", "data.path='~/rows.jsonl'")
    before = collect_inputs(start(*words))
    (folder / "rows.jsonl").write_text('{"prompt": "a", "answer": "c"}')
    after = collect_inputs(start(*words))
    assert after.unlike(before) == ["data.path has changed"]


@pytest.mark.parametrize("text", ["~", "~nobody_of_that_name/rows", "~/" + "a" * 5000, "~/\0"])
def test_a_text_that_can_be_no_path_names_no_file(text):
    assert collect_inputs({"data": {"path": text}}).files == collect_inputs({}).files


def test_no_folder_of_a_command_or_around_the_work_is_read(tmp_path, monkeypatch):
    """A sandbox is given / and /proc, which have no end."""
    for name in ("work/rows/a.jsonl", "work/agent.py", "lib/large.so", "home/me/large.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("content")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    command = ["bwrap", "--ro-bind", f"{tmp_path}/lib", "/lib", "python", "agent.py"]
    around = {"a": str(tmp_path), "b": "../", "c": f"{tmp_path}/home", "d": "~/", "data": "rows/"}
    inputs = collect_inputs({"world": {"command": command}, **around})
    assert {*inputs.files} - {*collect_inputs({}).files} == {"world.command.5", "data/a.jsonl"}
    assert inputs.values["world.command.2"] == f"{tmp_path}/lib"


def files_used(*words):
    """Files of Tandem in the name of a warm start."""
    cfg = compose(words)
    cfg.overrides = list(words)
    return {
        file for file in collect_inputs(warm_configuration(cfg)).files if file.startswith("tandem/")
    }


def test_of_tandem_counts_what_a_start_goes_through_and_nothing_else():
    """Chosen by hand: imitation of letters uses neither images nor report pages."""
    files = files_used("data=sort_letters")
    through = ("training/module", "policies/language/policy", "data/sort", "losses/policy")
    beside = (
        "launch/banner",
        "compare/table",
        "sweep/job",
        "policies/flow/policy",
        "losses/sequence",
    )
    assert not {f"tandem/{name}.py" for name in through} - files
    assert not {f"tandem/{name}.py" for name in beside} & files
    assert "tandem/policies/flow/policy.py" in files_used(
        "model=tiny_flow", "warm_start=['algorithm=sft']"
    )


@pytest.mark.slow
def test_nothing_that_a_start_imports_is_missing_from_its_name():
    """All modules that Python loads from the packages that affect weights."""
    code = (
        "import sys, tandem.launch.assembly, tandem.training.module\n"
        "print(*[m.__file__ for n, m in sys.modules.items() if n.startswith('tandem.')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = ("training", "algorithm", "advantages")
    loaded = {Path(file).relative_to(TANDEM) for file in told.stdout.split()}
    own = {f"tandem/{file}" for file in loaded if file.parts[0] in rooms and file.name[0] != "_"}
    assert own - files_used() <= set()


def test_a_line_says_why_none_that_is_kept_will_do(folder):
    kept = folder / "kept"
    first = collect_inputs(start("data=mine"))
    assert reason(first, kept) == "the first one of this model here"
    (kept / first.name).mkdir(parents=True)
    (kept / first.name / FILE).write_text(first.text)
    assert collect_inputs(start("data=mine")) == first
    (folder / "own_words.py").write_text("WORDS = ('b',)\n")
    said = reason(collect_inputs(start("data=mine", "seed=3")), kept)
    assert said.startswith(
        f"{first.name} differs: own_words.py has changed, seed is 3 and was 0, data.seed is 3"
    )
    cfg = compose(["model=tiny_flow"])
    cfg.overrides = ["model=tiny_flow"]
    assert (
        reason(collect_inputs(warm_configuration(cfg)), kept) == "the first one of this model here"
    )
    for name in ("damaged", f"{first.name}.host-7"):  # the latter is being trained
        (kept / name).mkdir()
        (kept / name / FILE).write_text("")
    assert reason(first, kept) == f"{first.name} differs: "
    unread = replace(first, files={})
    assert "own_words.py is used now" in first.unlike(unread)
    assert "own_words.py is no longer used" in unread.unlike(first)
