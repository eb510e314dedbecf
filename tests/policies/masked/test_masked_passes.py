"""Passes of a masked-diffusion model per update; docs/masked.md has the table."""

from functools import cache
from pathlib import Path

import pytest
from laws.bench import Published, load_preset
from policies.masked.small_masked import POSITIONS, make_rollout, sampling, small_masked

from tandem.config import compose
from tandem.training.batches import needs_of
from tandem.types import take

PAGE = Path(__file__).parents[3] / "docs" / "masked.md"
PRESETS = ("grpo", "trace_rl", "diffu_grpo", "coupled_grpo", "espo", "wd1", "spg")


@cache
def algorithm_of(preset: str) -> Published:
    return load_preset(compose([f"algorithm={preset}", "model=tiny_masked", "~recipe"]))


class Plan:
    """The number of updates of an algorithm, on which the needs of its metrics depend."""

    def __init__(self, algorithm: Published) -> None:
        self.updates = algorithm.num_minibatches * algorithm.epochs


class Watch:
    """Counts the passes per row of a policy and its reference, including shared ones."""

    def __init__(self, policy, rows: int) -> None:
        self.rows, self.passes = rows, 0
        for scorer in filter(None, (policy.scorer, policy.reference)):
            scorer.states_at = self.watched(scorer.states_at)

    def watched(self, states_at):
        def counting(tokens, *places):
            self.passes += len(tokens)
            return states_at(tokens, *places)

        return counting

    def taken(self) -> float:
        passes, self.passes = self.passes / self.rows, 0
        return passes


def count(preset: str) -> tuple[float, float, float]:
    """Passes per row: before the first update, per update, before the updates of another epoch."""
    algorithm = algorithm_of(preset)
    needs = needs_of(algorithm, Plan(algorithm))
    policy = small_masked(algorithm.likelihood, needs, sampling=sampling(steps=POSITIONS))
    rollout = make_rollout(policy)
    if rollout.behaviour_logp is not None:  # as measured on rows of the first rollout
        policy.trusts(rollout)
    whole = rollout.mask.all(1).nonzero()[:, 0]  # a row that ends early has fewer steps to replay
    assert len(whole)
    rollout = take(rollout, whole)
    watch = Watch(policy, len(whole))
    filled = policy.complete(rollout, needs)
    before = watch.taken()
    policy.evidence(filled, needs)
    live = watch.taken()
    policy.resample_noise(filled, 1)
    return before, live, watch.taken() if algorithm.epochs > 1 else 0.0


@pytest.mark.parametrize("preset", PRESETS)
def test_the_page_says_how_often_the_model_is_asked(preset):
    before, live, again = count(preset)
    row = f"| `{preset}` | {live:g} | {before:g} | {again:g} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines(), row
