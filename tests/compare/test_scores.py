"""Whether a higher value is better, for all metric names of training and evaluation."""

import pytest
import torch
from records import rollout, scores

from tandem.compare.scores import is_score, is_share
from tandem.evaluation.prompt_metrics import PromptMetrics, compute_metrics
from tandem.evaluation.settings import Answers, Pictures, UnmaskedAnswers
from tandem.metrics import response_metrics, reward_metrics
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling
from tandem.policies.masked.records import MaskedSampling
from tandem.policies.masked.unmasking import plan
from tandem.types import Prompt

ANSWERS = Answers(every=1, prompts=None, samples=2, temperatures=(1.0, 0.3), pass_at=(1, 2))
PICTURES = Pictures(
    every=1, prompts=None, samples=2, pass_at=(2,), threshold=0.5, steps=2, guidance_scale=1.0
)


def evaluate(settings, own, parts):
    """The metric names of such an evaluation."""
    prompts = [Prompt(id=i, source=source, text="?") for i, source in enumerate(("std", "a/b"))]
    sums = {name: torch.ones(2, dtype=torch.float64) for name in PromptMetrics(parts).names}
    passes = settings.passes(own, full=True)
    return {name for one in passes for name in compute_metrics(sums, parts, prompts, one)}


def train():
    """The metric names of an iteration's rewards and responses."""
    group = torch.tensor([0, 0, 1, 1])
    sampled = rollout(torch.ones(4, 3, dtype=torch.bool), group)
    rewards = reward_metrics(scores(torch.tensor([1.0, 0.0, 1.0, 1.0])), sampled)
    return {*rewards, *response_metrics(sampled)}


def test_of_an_evaluation_of_texts_accuracies_rewards_and_pass_at_k_are_scores():
    names = evaluate(ANSWERS, Sampling(max_new_tokens=2), ("exact_match", "missing"))
    assert {name for name in names if not is_score(name)} == {
        "eval/length",
        "eval/truncated",
        "eval/missing",
        *("eval/repetition", "eval/other_script", "eval/format_share"),
    }
    assert {name for name in names if is_score(name) and not is_share(name)} == {
        "eval/reward",
        "eval/reward_exact_match",
        "eval/reward_missing",  # a reward of that name
    }
    assert {"eval/greedy_accuracy", "eval/accuracy_t0.3", "eval/accuracy/a/b"} <= names
    assert {"eval/pass@2", "eval/pass@2/std"} <= names


def test_greedy_answers_in_other_numbers_of_steps_are_scores():
    few = {"every": 1, "prompts": None, "samples": 2, "pass_at": (2,)}
    settings = UnmaskedAnswers(temperatures=(1.0,), steps=(3,), **few)
    names = evaluate(settings, MaskedSampling(max_new_tokens=4), ("exact_match",))
    assert [name for name in names if "_in_3" in name and is_share(name)] == [
        "eval/greedy_accuracy_in_3"
    ]


def test_greedy_answers_in_three_steps_take_three_whatever_bounds_those_of_training():
    few = {"every": 1, "prompts": None, "samples": 2, "pass_at": (2,)}
    settings = UnmaskedAnswers(temperatures=(1.0,), steps=(3,), **few)
    own = MaskedSampling(max_new_tokens=6, entropy_bound=0.5)
    plain, *_, fewer = settings.passes(own, full=False)
    assert [len([*plan(mode.sampling)]) for mode in (plain, fewer)] == [6, 3]
    assert (plain.sampling.entropy_bound, fewer.sampling.entropy_bound) == (0.5, None)


def test_of_an_evaluation_of_pictures_too():
    names = evaluate(PICTURES, FlowSampling(steps=2), ("sharp",))
    found = {name for name in names if is_score(name)}
    assert found == {
        f"eval/{what}{at}"
        for what in ("accuracy", "accuracy_sampled", "reward", "reward_sampled", "pass@2")
        for at in ("", "/std", "/a/b")
    }
    assert {"eval/diversity", "eval/dark", "eval/missing_sampled"} <= names - found


def test_of_an_iteration_means_are_and_spreads_and_what_is_missing_are_not():
    names = train()
    found = {name for name in names if is_score(name)}
    assert found == {
        "reward/mean",
        "reward/accuracy/mean",
        "reward/pass@2",
        "reward/frac_all_right",
    }
    assert {n for n in names - found if n.startswith("reward/")} == {
        "reward/std",
        "reward/accuracy/std",  # of a reward called accuracy
        "reward/frac_zero_std",
        "reward/frac_all_wrong",
    }
    assert not is_share("reward/accuracy/mean")  # of unknown scale


@pytest.mark.parametrize("name", ["eval/pair_accuracy", "test/accuracy", "test/greedy_accuracy"])
def test_pairs_and_a_test_set_have_accuracies_too(name):
    assert is_score(name) and is_share(name)


@pytest.mark.parametrize(
    "name", ["eval/pair_margin", "reward/faults", "reward/missing", "loss/reward_model"]
)
def test_what_only_sounds_like_a_score_is_none(name):
    assert not is_score(name) and not is_share(name)
