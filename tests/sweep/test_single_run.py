"""Words of a sweep in the command line of one run, and of one run in that of a sweep."""

import pytest

import tandem
from tandem.config import ConfigError
from tandem.launch.command_line import Run, preflight
from tandem.sweep.words import Sweep, parse_sweep

LAUNCHER = "only a sweep reads it; add -m, or leave it out"


@pytest.fixture
def study(tmp_path, monkeypatch, request):
    """Writes experiments into the plugin of a test, and returns the override that loads it."""
    package = f"swept_{abs(hash(request.node.nodeid)):x}"  # a module is imported once in a process
    (tmp_path / package / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / package / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(**texts):
        for name, text in texts.items():
            file = tmp_path / package / "conf" / "experiment" / f"{name}.yaml"
            file.write_text(f"# @package _global_\niterations: 3\n{text}")
        return f"plugins=[{package}]"

    return write


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--resolve"], "--resolve: it goes with --cfg, e.g. --cfg job --resolve"),
        (["--package", "seed"], "--package: it goes with --cfg, e.g. --cfg job --package"),
        (["hydra/launcher=basic"], f"hydra/launcher=basic: {LAUNCHER}"),
        (["hydra/sweeper=search"], f"hydra/sweeper=search: {LAUNCHER}"),
        (["+hydra.launcher.partition=gpu"], f"+hydra.launcher.partition=gpu: {LAUNCHER}"),
        (["hydra.sweeper.max_batch_size=2"], f"hydra.sweeper.max_batch_size=2: {LAUNCHER}"),
        (["sweep_dir=mine"], f"sweep_dir=mine: {LAUNCHER}"),
        (["hydra.sweep.dir=mine"], f"hydra.sweep.dir=mine: {LAUNCHER}"),
        (["hydra.mode=MULTIRUN"], "hydra.mode=MULTIRUN: write -m instead"),
    ],
)
def test_a_word_that_one_run_would_drop_is_refused(words, answer):
    with pytest.raises(ConfigError) as refused:
        preflight(["train.py", *words])
    assert str(refused.value) == answer


def test_the_command_line_of_a_job_has_both_folders():
    assert isinstance(preflight(["train.py", "run_dir='a/seed=0'", "sweep_dir=a"]), Run)


def test_an_experiment_that_sweeps_is_not_started_as_one_run(study):
    own = study(study="hydra: {sweeper: {params: {seed: '0,1', group_size: '4,8'}}}")
    said = (
        "experiment=study sweeps seed, group_size: start it by python -m tandem train -m, or add "
        "hydra.mode=RUN for a single run"
    )
    for start in (lambda *words: preflight(["train.py", *words]), tandem.train):
        with pytest.raises(ConfigError) as refused:
            start(own, "experiment=study", "dry_run=true")
        assert str(refused.value) == said
    assert isinstance(preflight(["train.py", own, "experiment=study", "-m"]), Sweep)
    assert isinstance(preflight(["train.py", own, "experiment=study", "hydra.mode=RUN"]), Run)


def test_experiments_that_are_swept_sweep_nothing_themselves(study):
    swept = "hydra: {sweeper: {params: {seed: '0,1'}}}"
    words = [study(plain="", one=swept, other=swept), "experiment=plain,one,other"]
    with pytest.raises(
        ConfigError,
        match=r"^experiment=plain,one,other: one sweeps seed itself; give it alone, or give the "
        r"values on the command line$",
    ):
        parse_sweep(words, multirun=True)
    own = [*words, "seed=2"]
    assert list(parse_sweep(own, multirun=True).swept) == ["experiment"]
    assert list(parse_sweep([words[0], "experiment=plain,null"], multirun=True).jobs) == [
        "experiment=plain",
        "experiment=null",
    ]


@pytest.mark.parametrize("order", ["plain,above", "above,plain"])
def test_an_experiment_that_is_swept_is_based_on_none_that_sweeps(study, order):
    swept = "hydra: {sweeper: {params: {seed: '0,1'}}}"
    own = study(plain="", one=swept, above="defaults: [one, _self_]")
    with pytest.raises(ConfigError, match=r": above sweeps seed itself; give it alone, or "):
        parse_sweep([own, f"experiment={order}"], multirun=True)


def test_the_memory_of_one_run_is_estimated(study):
    own = study(study="hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1'}}}")
    for words in ([own, "experiment=study"], ["-m", "seed=0,1"], ["sweep=seeds"]):
        with pytest.raises(ConfigError, match=r"^estimate=true: it is of one run; leave out "):
            preflight(["train.py", "estimate=true", *words])
    assert isinstance(
        preflight(["train.py", own, "experiment=study", "estimate=true", "hydra.mode=RUN"]), Run
    )
