"""A module of a user, written where a run starts, and what a run of it says."""

import sys

import pytest

import tandem
from tandem.config import ConfigError
from tandem.stop import Stop

QUICK = (
    "warm_start=null iterations=2 prompts_per_step=4 group_size=4 evaluation.every=null "
    "data.prompts.count=40 data.demonstrations.count=40 guards.no_signal=9 checkpoints.every=1 "
)
LENGTH = "reward=target_length reward.target_length.function.target=5 "


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Writes a module `wrong`, with the files of its conf/, and gives what a run needs of it."""

    def write(text, reward=LENGTH, **files):
        (tmp_path / "wrong.py").write_text(text)
        for place, content in files.items():
            file = tmp_path / "conf" / place.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".yaml").write_text(content)
        return f"plugins=[wrong] {QUICK} {reward} ~recipe run_dir={tmp_path}/run".split()

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    sys.modules.pop("wrong", None)


def words_of(words, *more):
    """The one line that ends a run."""
    with pytest.raises((Stop, ConfigError)) as ended:
        tandem.train(*words, *more)
    assert "\n" not in str(ended.value)
    return str(ended.value)


def metrics_of(words, *more):
    """The metrics of a run of one iteration, without those of time."""
    found = tandem.train(*words, "iterations=1", *more).metrics
    return {name: x for name, x in found.items() if not name.startswith(("time/", "perf/"))}
