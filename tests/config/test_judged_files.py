"""A file that configures Hydra itself is refused before Hydra acts on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.utils import create_config_search_path
from hydra.types import RunMode
from omegaconf import OmegaConf

from tandem.config import ConfigError, check, compose
from tandem.config.loading import Loader
from tandem.config.plugins import ADMITTED
from tandem.launch.command_line import preflight
from tandem.sweep.words import parse_sweep

ROOT = Path(__file__).parents[2]
GLOBAL = "# @package _global_\n"
CALLS = "{_target_: os.mkdir, path: canary}"
ADVICE = "files are not trusted with it; set it on the command line"
SET = {  # the text of an experiment's file -> the refused key
    f"hydra: {{callbacks: {{a: {CALLS}}}}}": "hydra.callbacks.a._target_",
    "hydra: {job: {env_set: {LD_PRELOAD: x.so}}}": "hydra.job.env_set.LD_PRELOAD",
    "hydra: {job: {env_copy: [HOME]}}": "hydra.job.env_copy.0",
    'hydra: {hydra_logging: {handlers: {console: {"()": os.getcwd}}}}': (
        "hydra.hydra_logging.handlers.console.()"
    ),
    'hydra: {job_logging: {filters: {f: {"()": os.getcwd}}}}': "hydra.job_logging.filters.f.()",
    f"hydra: {{launcher: {CALLS}}}": "hydra.launcher._target_",
    f"hydra: {{sweeper: {CALLS}}}": "hydra.sweeper._target_",
    "hydra: {sweeper: {params: '${seed}'}}": "hydra.sweeper.params",
    "hydra: {sweeper: {params: {+hydra.job.env_set.A: '1,2'}}}": (
        "hydra.sweeper.params.+hydra.job.env_set.A"
    ),
    "hydra: {sweeper: {params: {plugins: '[a],[b]'}}}": "hydra.sweeper.params.plugins",
    "hydra: {sweeper: {params: {reward.http.function.token_env: 'A,B'}}}": (
        "hydra.sweeper.params.reward.http.function.token_env"
    ),
    "hydra: {sweeper: {params: {warm_start: 'choice([plugins=[a]],[seed=1])'}}}": (
        "hydra.sweeper.params.warm_start"
    ),
    "hydra: {run: {dir: elsewhere}}": "hydra.run.dir",
    "hydra: {mode: OTHER}": "hydra.mode",
    "hydra: null": "hydra",
    "plugins: [evil]": "plugins.0",
    "resume: mine": "resume",
    "hydra: {sweeper: {params: {resume: 'a,b'}}}": "hydra.sweeper.params.resume",
}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """The folder conf/ of a plugin in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "study" / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "study" / "__init__.py").write_text("")
    yield tmp_path / "study" / "conf"
    sys.modules.pop("study", None)
    ADMITTED.discard("study")


CHOSEN = ["plugins=[study]", "experiment=odd"]


def write(study: Path, text: str, name: str = "experiment/odd") -> None:
    path = study / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def load(study: Path) -> None:
    """Load, as `compose` does, a configuration of the experiment alone."""
    write(study, "defaults: [_self_, experiment: odd]", "config")
    source = Loader(create_config_search_path(str(study)))
    source.load_configuration("config", [], RunMode.RUN)


@pytest.mark.parametrize(("text", "key"), SET.items())
def test_a_file_tells_hydra_nothing_but_what_is_swept(study, text, key):
    write(study, GLOBAL + text)
    with pytest.raises(ConfigError) as refused:
        load(study)
    assert str(refused.value) == f"experiment/odd.yaml sets {key}: {ADVICE}"


def test_a_command_line_that_chooses_such_a_file_is_refused_before_hydra(study):
    write(study, f"{GLOBAL}hydra: {{callbacks: {{a: {CALLS}}}}}")
    for options in ([], ["-m", "seed=0,1"]):
        with pytest.raises(ConfigError, match=r"^experiment/odd\.yaml sets hydra\.callbacks\.a\."):
            preflight(["train.py", *options, *CHOSEN, "dry_run=true"])
    assert not Path("canary").exists()


@pytest.mark.parametrize("package", ["hydra", "hydra.callbacks.a"])
def test_a_package_is_no_way_around(study, package):
    write(study, f"# @package {package}\n_target_: os.mkdir\n")
    with pytest.raises(ConfigError, match=rf"^experiment/odd\.yaml sets {package}\._target_: "):
        load(study)
    write(study, "_target_: os.mkdir\n", "side/way")
    write(study, f"{GLOBAL}defaults:\n  - /side@{package}: way\n")
    with pytest.raises(ConfigError, match=rf"^side/way\.yaml sets {package}\._target_: "):
        load(study)


@pytest.mark.parametrize(
    ("word", "choice"),
    [
        ("override /hydra/launcher: basic", "hydra/launcher=basic"),
        ("override /hydra/hydra_logging: none", "hydra/hydra_logging=none"),
        ("/hydra/job_logging@x: stdout", "hydra/job_logging=stdout"),
        ("/hydra/job_logging/stdout@x", "/hydra/job_logging/stdout"),
    ],
)
def test_a_file_chooses_no_option_of_hydras_groups(study, word, choice):
    write(study, f"{GLOBAL}defaults:\n  - {word}\n")
    with pytest.raises(ConfigError) as refused:
        load(study)
    assert str(refused.value) == f"experiment/odd.yaml chooses {choice}: {ADVICE}"


OWN = """
defaults:
  [{launcher: basic}, {sweeper: basic}, {output: default}, {help: default}, {hydra_help: default},
   {hydra_logging: default}, {job_logging: default}]
"""


@pytest.mark.parametrize("name", ["hydra/config", "hydra/launcher/basic", "hydra/sweeper/basic"])
def test_a_file_does_not_stand_in_for_one_of_hydras_own(study, name):
    write(study, f"_target_: os.mkdir\n{OWN if name == 'hydra/config' else ''}", name)
    with pytest.raises(ConfigError, match=rf"^{name}\.yaml: Hydra's own groups take no options"):
        compose(["plugins=[study]"])


def test_folders_that_nothing_judged_are_not_searched(study):
    with pytest.raises(ConfigError, match=r"^hydra\.searchpath: conf/ is the only source; see"):
        compose([f"hydra.searchpath=['file://{study}']"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"x: &a [y]\nz: [*a, *a]", "odd.yaml has a YAML alias, which is not allowed"),
        (b"guards: &a {judges: *a}", "odd.yaml has a YAML alias, which is not allowed"),
        (b"x: " + b"[" * 3000 + b"]" * 3000, "odd.yaml is more than 100 levels deep"),
        (b"".join(b" " * i + b"x:\n" for i in range(300)), "odd.yaml is more than 100 levels deep"),
        (b"x:\n" + b"- " * 300 + b"y", "odd.yaml is more than 100 levels deep"),
        (b"seed: " + b"9" * 5000, r"odd.yaml: Exceeds the limit \(4300 digits\)"),
        (b"seed: 1\0", "odd.yaml: "),
        (b"seed: \xff", "odd.yaml: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(study, text, said):
    write(study, "")
    (study / "experiment" / "odd.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=said):
        load(study)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defaults: [odd]", "includes itself through its defaults"),
        ("defaults: [3]", "Unsupported type in defaults : int"),
        ("defaults: [{a: b, c: d}]", "Too many keys in default item"),
        ('seed: !!binary "AAAA"', "seed: expected int, got \"b'"),
        ("model: null", "model is missing: choose one of the options of conf/model"),
    ],
)
def test_a_file_that_cannot_be_composed_is_one_line(study, text, said):
    write(study, GLOBAL + text)
    with pytest.raises(ConfigError, match=said):
        check(compose(CHOSEN))


READING = {  # two keys that read the environment only together
    "sweep_dir: ${oc.env:HOME}": "sweep_dir",
    "sweep_dir: ${${run_dir}:HOME}\nrun_dir: '${logger.a}.${logger.b}'": "sweep_dir",
    "sweep_dir: '${oc.decode:${run_dir}}'\nrun_dir: \"'\\\\${oc.\\\\${x}:HOME}'\"": "sweep_dir",
    "sweep_dir: '${oc.create:${run_dir}}'": "sweep_dir",
}


@pytest.mark.parametrize(("text", "key"), READING.items())
def test_a_file_does_not_read_the_environment(study, text, key):
    write(study, GLOBAL + text)
    with pytest.raises(ConfigError) as refused:
        load(study)
    said = "only PROJECT_ROOT may be read from the environment"
    assert str(refused.value) == f"experiment/odd.yaml: {key}: {said}"


@pytest.mark.parametrize("text", READING)
def test_a_configuration_does_not_read_the_environment(text):
    cfg = OmegaConf.merge(compose(), OmegaConf.create(text.replace("logger.", "data.")))
    with pytest.raises(ConfigError, match="only PROJECT_ROOT may be read from the environment"):
        check(cfg)


def test_a_file_says_what_is_swept_and_chooses_what_is_ours(study):
    text = "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1', optimizer.lr: '1e-3,1e-4'}}}"
    write(study, f"{GLOBAL}defaults:\n  - override /algorithm: rloo\n{text}\n")
    assert len(parse_sweep(CHOSEN, multirun=False).jobs) == 4


@pytest.mark.system
def test_a_dry_run_of_a_recipe_runs_nothing_of_it(study, tmp_path):
    lines = ["import os", "def f(): os.mkdir('canary')"]
    (tmp_path / "loud.py").write_text("\n".join(lines))
    text = 'hydra: {hydra_logging: {formatters: {a: {"()": loud.f}}}}'
    write(study, GLOBAL + text)
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *CHOSEN, "dry_run=true"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    key = "hydra.hydra_logging.formatters.a.()"
    assert done.stderr == f"experiment/odd.yaml sets {key}: {ADVICE}\n"
    assert done.returncode == 2
    assert not (tmp_path / "canary").exists()
