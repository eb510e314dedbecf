"""Laws of invariance: rows may be cut, padded, ordered, shifted, rounded and spread over ranks.

A law is a function of an algorithm that raises if it is broken. A second function gives the reason
why it does not hold for some, in one sentence, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from laws.bench import EXACT, Bench, agree, of_steps, policy_of, run
from torch import Tensor
from torch.testing import assert_close

from tandem import rng
from tandem.advantages import baselines, group, moves, passk, temporal
from tandem.advantages.clipped import Clipped
from tandem.algorithm.algorithm import Algorithm
from tandem.algorithm.regularizers import KLInLoss, KLInReward
from tandem.contracts import unwrap_partial
from tandem.experience import Budget
from tandem.losses import kl
from tandem.losses.distillation import distillation
from tandem.losses.matching import dmd2, tdm
from tandem.types import Rollout, Scores, map_fields, take

CUTS = (Budget(rows=5), Budget(max_tokens=17))  # for images the second gives one at a time
FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}  # a gradient of length 0.1, or a metric near 1
BONUS = 3.0
Law = Callable[[Algorithm], None]


def always(algorithm: Algorithm) -> None:
    """No reason: the law holds for all."""


def kind(component: Callable) -> Callable | type:
    """The function of a component, or the class of a stateful one."""
    function = unwrap_partial(component)[0]
    return function if hasattr(function, "__name__") else type(function)


# Cuts.


def cut(algorithm: Algorithm) -> None:
    """Micro-batches of five rows, of one row or of uneven numbers give the same gradient."""
    whole = run(algorithm)
    for budget in CUTS:
        parts = run(algorithm, budget=budget)
        assert max(parts.policy.rows_seen) <= max(whole.policy.rows_seen)
        assert len(parts.policy.rows_seen) > len(whole.policy.rows_seen)
        agree(parts, whole)


def finds_nothing(algorithm: Algorithm) -> str | None:
    return None if algorithm.training_objective.statistics else "its loss reads each row alone"


def find_alike(algorithm: Algorithm) -> None:
    """The statistics that a loss computes over an update are equal for every cut."""
    whole = run(algorithm)
    assert any(found.any() for update in whole.statistics for found in update.values())
    for budget in CUTS:
        assert_close(run(algorithm, budget=budget).statistics, whole.statistics, **EXACT)


# Rows and steps.


def reverse_rows(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
    rows = torch.arange(len(rollout.mask)).flip(0)
    return take(scores, rows), take(rollout, rows)


def shuffle_rows(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
    rows = rng.permutation(rng.key("rows"), len(rollout.mask))
    return take(scores, rows), take(rollout, rows)


def permutation(algorithm: Algorithm) -> None:
    """The order of the rows does not matter, even if groups are torn apart."""
    want = run(algorithm)
    agree(run(algorithm, change=shuffle_rows), want)
    agree(run(algorithm, change=reverse_rows), want)


def pad(scores: Scores, rollout: Rollout, *, left: int, right: int) -> tuple[Scores, Rollout]:
    """Untrained steps on either side, and NaN in every value outside the mask.

    Steps on the left were sampled, so they count in the length; those on the right were not.
    """

    def wider(value: Tensor | tuple) -> Tensor | tuple:
        if isinstance(value, tuple) or value.ndim == 1:
            return value
        inside = (0, 0) * (value.ndim - 2)  # from the last axis on
        return torch.nn.functional.pad(value, (*inside, left, right))

    def poisoned(value: Tensor | tuple) -> Tensor | tuple:
        if isinstance(value, tuple) or value.ndim == 1 or not value.is_floating_point():
            return value
        mask = wide.mask.view(*wide.mask.shape, *(1,) * (value.ndim - 2))
        return torch.where(mask, value, torch.nan)

    wide = map_fields(rollout, wider)
    return scores, replace(map_fields(wide, poisoned), length=rollout.length + left)


def no_padding(algorithm: Algorithm) -> str | None:
    if algorithm.segments:
        return "its rows belong to two policies; tests/policies/chain tests their padding"
    whole = algorithm.objective == "denoising"
    return "every noise level of an image is inside the mask" if whole else None


def padding(algorithm: Algorithm) -> None:
    """NaN outside the mask, in records of the original width and in wider ones."""
    want = run(algorithm)
    for right in (0, 3):
        agree(run(algorithm, change=partial(pad, left=0, right=right)), want)


def prefix(algorithm: Algorithm) -> None:
    """Untrained steps that were sampled, before the others."""
    want = run(algorithm)
    agree(run(algorithm, change=partial(pad, left=2, right=1)), want)


# Scores.

SHIFTED = {
    group.given: "the score of a demonstration is its weight",
    group.batch_relative: "compared with all samples, not with a group",
    group.maxrl: "scores are divided by the mean of the group",
    passk.pass_at_k: "defined only for scores of 0 and 1",
    passk.pkpo: "has no baseline",
    temporal.reward_to_go: "has no group: returns are compared with those of all steps",
    temporal.generalised: "has no group: a critic is the baseline",
    moves.group_in_group: "a bonus at the end counts less for moves of earlier turns",
    baselines.raw_reward: "compares no samples",
    baselines.MovingAverage: "compared with earlier iterations, not with a group",
}


OF_NO_SCORE = (distillation, dmd2, tdm)  # losses that read no score
OF_ALL = (group.batch_std, group.batch_population_std)


def no_group(algorithm: Algorithm) -> str | None:
    if not algorithm.learns_from_scores or kind(algorithm.loss) in OF_NO_SCORE:
        return None
    advantage = algorithm.advantage
    estimator = advantage.of if isinstance(advantage, Clipped) else advantage
    if unwrap_partial(unwrap_partial(estimator)[1].get("scale"))[0] in OF_ALL:
        return "divided by the std of all samples, which the bonus changes"
    return SHIFTED.get(kind(estimator))


def a_group_up(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
    """Add BONUS to every score of the first group, and to one of its parts."""
    chosen = (rollout.group == rollout.group.min()) & scores.scored
    first, *others = scores.parts
    parts = {first: scores.parts[first] + BONUS * chosen} | {n: scores.parts[n] for n in others}
    return replace(scores, total=scores.total + BONUS * chosen, parts=parts), rollout


def shift(algorithm: Algorithm) -> None:
    """A bonus for a whole group changes nothing."""
    moved, want = run(algorithm, change=with_parts(a_group_up)), run(algorithm)
    if kind(algorithm.loss) in OF_NO_SCORE:  # the report contains scores
        assert_close(moved.gradients, want.gradients, **EXACT)
    else:
        agree(moved, want)


def with_parts(change: Callable) -> Callable:
    """Demonstrations have no reward parts; their total becomes one."""

    def on_parts(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
        parts = scores.parts or {"given": scores.total}
        return change(replace(scores, parts=parts), rollout)

    return on_parts


def shift_matters(algorithm: Algorithm) -> None:
    """For algorithms exempt from this law, a bonus changes the gradient or is refused."""
    refused = moved = None
    try:
        moved = run(algorithm, change=with_parts(a_group_up))
    except ValueError as error:
        refused = str(error)
    if moved is None:
        assert "scored" in refused
    else:
        pairs = zip(moved.gradients, run(algorithm).gradients, strict=True)
        assert max((got - want).abs().max() for got, want in pairs) > 1e-6


# Numbers.


def float32(algorithm: Algorithm) -> None:
    """Single precision agrees with double precision to a part in ten thousand."""
    got = run(algorithm, dtype=torch.float32)
    want = run(algorithm)
    assert got.rollout.outputs == want.rollout.outputs
    assert {gradient.dtype for gradient in got.gradients} == {torch.float32}
    for single, double in zip(got.gradients, want.gradients, strict=True):
        assert_close(single.double(), double, rtol=1e-4, atol=1e-4 * float(double.abs().max()))
    assert_close(got.report, want.report, **FLOAT32)


def without_penalties(algorithm: Algorithm, **kept: float) -> Algorithm:
    """Penalty coefficients of 0 except those given, including that of the KL to an EMA."""
    coefs = {"kl": 0.0, "entropy": 0.0} | kept
    own = {
        part: replace(getattr(algorithm, part), coef=coef, **_STILL[part])
        for part, coef in coefs.items()
    }
    ema_kl = algorithm.ema_kl
    return replace(algorithm, **own, ema_kl=ema_kl and replace(ema_kl, coef=0.0))


OF_TOKENS = (kl.k2, kl.k3, kl.k3_plus, kl.k3_unbiased)
OF_STEPS = (kl.gaussian, kl.mean_distance, kl.velocity_distance, kl.timeless)
OF_ERRORS = (kl.regressed, kl.regressed_elbo, kl.reward_adaptive)
_STILL = {"kl": {"kl_target": None}, "entropy": {"target": None}}


def coefficient(algorithm: Algorithm) -> None:
    """A penalty of coefficient 0 reads nothing and adds nothing, like one near 0."""
    silent = without_penalties(algorithm)
    assert set(silent.training_objective.terms) <= {"policy", "value", *algorithm.networks}
    alike = {"policy": partial(policy_of, algorithm, torch.float64)}
    want = run(silent, **alike)
    on_errors = algorithm.reads_errors
    estimators = OF_ERRORS if on_errors else OF_STEPS if of_steps(algorithm) else OF_TOKENS
    kinds = [KLInReward(coef=0.0), *(KLInLoss(coef=0.0, loss=of) for of in estimators)]
    for other in kinds:
        turned_off = replace(silent, kl=other)
        assert turned_off.needs == silent.needs
        agree(run(turned_off, **alike), want, rtol=0, atol=0)
    if algorithm.networks:
        return  # their scores already bound the policy, and a penalty is refused
    near = without_penalties(algorithm, kl=1e-13, entropy=0.0 if on_errors else 1e-13)
    if on_errors:  # they have no entropy, and distillation has no KL of its own
        near = replace(near, kl=KLInLoss(coef=1e-13, loss=kl.regressed))
    near = run(near, **alike)
    assert_close(near.gradients, want.gradients, **EXACT)


# Ranks.


def one_rank(algorithm: Algorithm) -> Bench:
    return run(algorithm, iterations=rounds(algorithm))


def two_ranks(algorithm: Algorithm) -> Bench:
    """The run of each of two ranks, whose rows are also cut."""
    return run(algorithm, iterations=rounds(algorithm), budget=Budget(rows=3))


def rounds(algorithm: Algorithm) -> int:
    """Enough iterations to show everything: state acts in the second, and a policy that pauses
    trains in the last."""
    return max(2 if algorithm.memory else 1, algorithm.policy_every)
