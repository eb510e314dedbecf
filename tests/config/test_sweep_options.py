"""The options of conf/sweep for each model: its runs by name, or a refusal in one line."""

from pathlib import Path

import pytest

from tandem.config import ConfigError, check, compose
from tandem.sweep.swept_values import find_one_that_runs
from tandem.sweep.words import parse_sweep

CONF = Path(__file__).parents[2] / "conf" / "sweep"
RUNS = {  # command line -> the differing overrides, as in the names of its folders
    "sweep=learning_rate": [f"optimizer.lr={lr}" for lr in (0.00015, 0.0003, 0.0006)],
    # Each model has its own row, and adapters have another one.
    "sweep=learning_rate model=qwen3_8b,qwen3_0_6b": [
        "model=qwen3_8b,optimizer.lr=1e-05",
        "model=qwen3_0_6b,optimizer.lr=5e-06",
        "model=qwen3_8b,optimizer.lr=2.24e-05",
        "model=qwen3_0_6b,optimizer.lr=7.07e-06",
        "model=qwen3_8b,optimizer.lr=5e-05",
        "model=qwen3_0_6b,optimizer.lr=1e-05",
    ],
    "sweep=clip_ratio": [f"algorithm.loss.clip_low={clip}" for clip in (0.1, 0.2, 0.3)],
    # A ratio of a whole sample, and that of a squared distance in the recipe of that model.
    "sweep=clip_ratio algorithm=gspo": [
        f"algorithm.loss.clip_low={clip}" for clip in (0.00015, 0.0003, 0.00045)
    ],
    "sweep=clip_ratio model=tiny_flow algorithm=grpo": [
        f"algorithm.loss.clip_low={clip}" for clip in (0.00025, 0.0005, 0.00075)
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
        "optimizer.lr: the range depends on the model size; set it, such as parameters=8.2e9"
    ),
    "sweep=clip_ratio algorithm=rloo": (
        "algorithm.loss.clip_low: algorithm=rloo has the loss reinforce, which does not clip a "
        "ratio; sweep another number, or set another algorithm"
    ),
    "sweep=dynamics": (
        "dynamics=flow_sde is for pictures, but model=tiny_lm makes tokens; set dynamics=auto, "
        "or a model of pictures"
    ),
}


@pytest.mark.parametrize("words", RUNS)
def test_the_runs_of_a_sweep_are_named_by_their_numbers(words):
    assert list(parse_sweep(words.split(), multirun=True).jobs) == RUNS[words]


def check_each(words):
    return find_one_that_runs(parse_sweep(words.split(), multirun=True), check)


@pytest.mark.parametrize("words", TRAINED)
def test_every_value_of_a_sweep_can_run_on_the_models_that_it_is_for(words):
    check_each(words)


def test_a_number_is_what_the_run_alone_would_find_whatever_was_run_before_it():
    def names(line):
        return list(parse_sweep(line.split(), multirun=True).jobs)

    assert names("seed=1,2 data.seed=${seed},7") == [
        "data.seed=1,seed=1", "data.seed=7,seed=1", "data.seed=2,seed=2", "data.seed=7,seed=2",
    ]  # fmt: skip
    rates = (5e-06, 7.07e-06, 1e-05)  # of a language model of 6e8
    assert names("sweep=learning_rate parameters=${mul:0.6,1.0e9}") == [
        f"optimizer.lr={rate}" for rate in rates
    ]


def test_words_that_make_no_number_beside_one_value_end_the_runs_of_this_value_alone():
    sweep = parse_sweep(["sweep=[clip_ratio,algorithms]", "algorithm=rloo,grpo"], multirun=True)
    refused = [job for job in sweep.jobs.values() if any("low=$" in line for line in job)]
    assert len(sweep.jobs) == 6 and len(refused) == 3
    for job in refused:
        with pytest.raises(ConfigError, match="clip_"):
            check(compose(job))


@pytest.mark.parametrize(("words", "said"), REFUSED.items(), ids=REFUSED)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_runs(words, said):
    with pytest.raises(ConfigError) as refused:
        check_each(words)
    assert str(refused.value) == said


def test_a_clip_is_the_same_on_both_sides_whatever_a_recipe_says():
    (job, *_) = parse_sweep(["sweep=clip_ratio"], multirun=True).jobs.values()
    loss = compose(job).algorithm.loss
    assert (loss.clip_low, loss.clip_high) == (0.1, 0.1)


def test_every_option_is_tried_here():
    tried = {word for words in RUNS for word in words.split() if word.startswith("sweep=")}
    for path in CONF.glob("*.yaml"):
        assert path.stem in {"seeds", "group_size"} or any(path.stem in word for word in tried)
