"""Parts from outside the package that are wrong end the run in one line that names them."""

import sys

import pytest

import tandem
from tandem.config import ConfigError
from tandem.stop import Stop

pytestmark = pytest.mark.usefixtures("unregistered")

ROWS = """
from dataclasses import replace

import torch
from tandem import register_truncation
from tandem.types import take

@register_truncation
def writing(scores, rollout):
    scores.total.add_(1)
    return scores, rollout

@register_truncation
def alone(scores, rollout):
    return scores

@register_truncation
def whole(scores, rollout):
    return replace(scores, total=scores.total.long()), rollout

@register_truncation
def counted(scores, rollout):
    return scores, replace(rollout, mask=rollout.mask.float())

@register_truncation
def misaligned(scores, rollout):
    return take(scores, torch.arange(len(scores.total) - 1)), rollout

@register_truncation
def shorter(scores, rollout):
    kept = torch.arange(len(scores.total) - 1)
    return take(scores, kept), take(rollout, kept)
"""
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


def said_by(words, *more):
    """The one line that ends a run."""
    with pytest.raises((Stop, ConfigError)) as ended:
        tandem.train(*words, *more)
    assert "\n" not in str(ended.value)
    return str(ended.value)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("writing", "writes on its arguments, which others read; return dataclasses.replace(...)"),
        ("alone", "returned Scores; return (scores, rollout)"),
        ("misaligned", "returned 15 scores of 16 rows"),
        ("whole", "returned a Scores.total of torch.int64; return float32"),
        ("counted", "returned a Rollout.mask of torch.float32; return bool"),
    ],
)
def test_a_truncation_handling_that_returns_something_else_than_shaped_rows(plugin, name, fault):
    said = said_by(plugin(ROWS), f"algorithm/truncation_handling={name}")
    assert said.startswith(f"truncation handling {name} at wrong.py:") and said.endswith(fault)


def test_a_truncation_handling_may_leave_out_rows(plugin):
    result = tandem.train(*plugin(ROWS), "algorithm/truncation_handling=shorter")
    assert result.metrics["optim/updates"] == 1
