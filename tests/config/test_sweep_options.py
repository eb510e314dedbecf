"""What each option of conf/sweep means for a model: its runs by name, or one line against it."""

from pathlib import Path

import pytest

from tandem.config import ConfigError, check, compose
from tandem.config.sweeps import jobs, sweep_of

CONF = Path(__file__).parents[2] / "conf" / "sweep"
RUNS = {  # command line -> what sets its runs apart, as their folders are named
    "sweep=learning_rate": [f"optimizer.lr={lr}" for lr in (0.00015, 0.0003, 0.0006)],
    # Of each model its own row, of adapters another one.
    "sweep=learning_rate model=qwen3_8b,qwen3_0_6b": [
        "model=qwen3_8b,optimizer.lr=1e-05",
        "model=qwen3_0_6b,optimizer.lr=5e-06",
        "model=qwen3_8b,optimizer.lr=2.24e-05",
        "model=qwen3_0_6b,optimizer.lr=7.07e-06",
        "model=qwen3_8b,optimizer.lr=5e-05",
        "model=qwen3_0_6b,optimizer.lr=1e-05",
    ],
    "sweep=clip_ratio": [f"algorithm.loss.clip_low={clip}" for clip in (0.1, 0.2, 0.3)],
    # A ratio of a whole sample, and one of a mean over 768 dimensions.
    "sweep=clip_ratio algorithm=gspo": [
        f"algorithm.loss.clip_low={clip}" for clip in (0.00015, 0.0003, 0.00045)
    ],
    "sweep=clip_ratio model=tiny_flow algorithm=grpo": [
        f"algorithm.loss.clip_low={clip}" for clip in (0.000469, 0.000938, 0.00141)
    ],
    "sweep=[kl,seeds] seed=3": [f"algorithm.kl.coef={coef}" for coef in (0.0, 0.001, 0.01, 0.1)],
    "sweep=dynamics model=tiny_flow": [
        f"dynamics={name}" for name in ("flow_sde", "dance_sde", "cps")
    ],
    "sweep=algorithms": [
        f"algorithm={name}" for name in ("grpo", "dr_grpo", "dapo", "gspo", "rloo")
    ],
}
TRAINED = ("sweep=[clip_ratio,kl]", "sweep=[dynamics,algorithms] model=tiny_flow")
REFUSED = {
    "sweep=learning_rate model=hf": (
        "optimizer.lr: the range depends on the size of the model: say it, as parameters=8.2e9"
    ),
    "sweep=clip_ratio algorithm=rloo": (
        "algorithm.loss.clip_low: algorithm=rloo has the loss reinforce, which has no clip_low and "
        "clip_high of a ratio; sweep a number of its own, or take another algorithm"
    ),
    "sweep=dynamics": (
        "dynamics=flow_sde takes steps of pictures, but model=tiny_lm makes tokens; take another "
        "algorithm, or leave dynamics=auto"
    ),
}


@pytest.mark.parametrize("words", RUNS)
def test_the_runs_of_a_sweep_are_named_by_their_numbers(words):
    assert list(sweep_of(words.split(), multirun=True).jobs) == RUNS[words]


def check_each(words):
    for job in jobs(words.split()):
        check(compose(job))


@pytest.mark.parametrize("words", TRAINED)
def test_every_value_of_a_sweep_can_run_on_the_models_that_it_is_for(words):
    check_each(words)


@pytest.mark.parametrize(("words", "said"), REFUSED.items(), ids=REFUSED)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_runs(words, said):
    with pytest.raises(ConfigError) as refused:
        check_each(words)
    assert str(refused.value) == said


def test_a_clip_is_the_same_on_both_sides_whatever_a_recipe_says():
    (job, *_) = sweep_of(["sweep=clip_ratio"], multirun=True).jobs.values()
    loss = compose(job).algorithm.loss
    assert (loss.clip_low, loss.clip_high) == (0.1, 0.1)


def test_every_option_is_tried_here():
    tried = {word for words in RUNS for word in words.split() if word.startswith("sweep=")}
    for path in CONF.glob("*.yaml"):
        assert path.stem in {"seeds", "group_size"} or any(path.stem in word for word in tried)
