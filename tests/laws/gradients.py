"""Laws of gradients: of the first update, of a KL in expectation, of exchanged pairs; and guards
that detect a different temperature of the trainer."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from laws.bench import EXACT, Bench, Setting, of_steps
from laws.invariance import kind, without_penalties
from policies.small_language import small, train_briefly
from table_policy import STOP, TablePolicy, TableSample
from torch import Tensor
from torch.testing import assert_close

from tandem.advantages.temporal import return_to_go
from tandem.algorithm.algorithm import Algorithm
from tandem.algorithm.regularizers import KLInReward
from tandem.contracts import facts_of, unwrap_partial
from tandem.experience import Experience
from tandem.losses import kl
from tandem.losses.entropy_cov import clip_cov
from tandem.losses.gaussian import grpo_guard, weighted_ppo
from tandem.losses.pairs import reward_of
from tandem.metrics import reduce_metrics
from tandem.policies.language.loaded_teachers import LoadedTokenTeachers
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.settings.guards import Guards
from tandem.stop import Stop
from tandem.training.reprompts import Reprompted
from tandem.types import Prompt, Rollout, Scores

COOL = 0.6
OF_TWO = "a chain has two policies, and presets of each cover this law"


def prefers(algorithm: Algorithm) -> bool:
    """Whether it learns from preferences, in pairs or one by one."""
    return reward_of(algorithm.loss) is not None


# The first update.


def no_policy_gradient(algorithm: Algorithm) -> str | None:
    if algorithm.segments:
        return OF_TWO
    if facts_of(algorithm.loss).on_errors:
        return "its loss reads velocity errors and is not -A log p"
    if facts_of(algorithm.loss).matches:
        return "its loss reads the predictions of networks and is not -A log p"
    if prefers(algorithm):
        return "a preference loss is not a policy gradient"
    if "upper_logp" in facts_of(algorithm.loss).reads:
        return "bad answers use another bound on log p"
    if "divergence" in facts_of(algorithm.loss).reads:
        return "a divergence over all tokens is not -A log p"
    of_group = facts_of(algorithm.loss).whole_groups
    return "advantages are labels, and the gradient is that of a classifier" if of_group else None


def first_step(algorithm: Algorithm) -> None:
    """On fresh samples the gradient is that of -A log p, every ratio is 1, nothing is clipped."""
    bench = Bench(replace(without_penalties(algorithm), critic=None))
    rows = bench.first_rows()
    outcome = bench.objective(bench.policy, rows)
    counts = rows.weights["policy"] * rows.advantages * weight_of_steps(bench, rows)
    if kind(algorithm.loss) is clip_cov:  # randomly chosen steps have no gradient
        counts = counts * ~rows.statistics["policy"].bool()
    logp = logp_of(bench, rows)
    want = torch.autograd.grad(-(logp * counts).sum(), bench.policy.table)
    assert want[0].any()
    assert_close(torch.autograd.grad(outcome.loss, bench.policy.table), want, **EXACT)
    if samples_nothing(algorithm) is not None:
        return  # without a sampler there is no drift
    metrics = reduce_metrics(outcome.metrics)
    still = [x for name, x in metrics.items() if "approx_kl" in name or "clip_frac" in name]
    assert len(still) >= 3
    assert still == pytest.approx([0.0] * len(still), abs=1e-12)
    assert metrics["actor/ratio_mean"] == metrics["actor/ratio_max"] == 1.0


def logp_of(bench: Bench, rows: Experience) -> Tensor:
    """Log-probabilities of steps, or those implied by velocity errors: [B, T]."""
    policy = bench.policy
    if not bench.algorithm.reads_errors:
        return policy.logp_under(rows.rollout.sample, policy.table)[:, : rows.rollout.mask.shape[1]]
    said = policy.errors(rows.rollout, frozenset())
    weighting = bench.algorithm.timestep_sampling.weighting
    return -weighting(said["sigma"], said["error"].square().mean(-1))


def weight_of_steps(bench: Bench, rows: Experience) -> Tensor | float:
    """The factor of a loss for each step, from its noise and its time alone."""
    loss, numbers = kind(bench.algorithm.loss), unwrap_partial(bench.algorithm.loss)[1]
    if loss not in (weighted_ppo, grpo_guard):
        return 1.0
    evidence = bench.policy.evidence(rows.rollout, frozenset({"transition"}))
    weight = numbers["weight"](evidence.transition)
    # GRPO-Guard takes std times the log ratio; the gradient of its KL is still 0.
    return weight * evidence.transition.std if loss is grpo_guard else weight


# The temperature.


def samples_nothing(algorithm: Algorithm) -> str | None:
    given = algorithm.needs & {"demonstrations", "pairs"}
    return "samples nothing: the rows are given" if given else None


def no_temperature(algorithm: Algorithm) -> str | None:
    if "upper_logp" in algorithm.needs:
        return "a bound on log p is not the log-probability of sampled tokens"
    if algorithm.segments:
        return OF_TWO
    return "a flow has no logits" if of_steps(algorithm) else samples_nothing(algorithm)


def temperature(algorithm: Algorithm) -> None:
    """Sampler and trainer divide the logits by the same number, and guards detect a difference."""
    cool = Sampling(max_new_tokens=8, temperature=COOL)
    policy = train_briefly(small(algorithm.needs, sampling=cool))  # random logits hardly differ
    policy.teachers = Doubter({})
    quick = {"policy": lambda: policy, "epochs": 1, "lr": 0.0}
    guards = Guards(no_signal=99, max_missing_rewards=1.0)
    if isinstance(algorithm.sampling_strategy, Reprompted):  # its characters are unknown here
        algorithm = replace(algorithm, sampling_strategy=algorithm.sampling_strategy.of)
    if "turn" in algorithm.needs:  # without an environment an answer is a move
        played = partial(in_one_turn, collect=algorithm.sampling_strategy)
        algorithm = replace(algorithm, sampling_strategy=played)
    bench = Bench(algorithm, Setting(guards=guards, **quick)).go()
    rollout = bench.rollout
    assert_close(
        rollout.behaviour_logp[rollout.mask],
        logp_at(COOL, policy, rollout)[rollout.mask],
        atol=1e-5,
        rtol=0,
    )
    warm = replace(
        algorithm, sampling_strategy=partial(forgetful, collect=algorithm.sampling_strategy)
    )
    policy.sampler.fill_(-1)
    with pytest.raises(Stop, match="temperature"):
        Bench(warm, Setting(guards=guards, **quick)).go()


def in_one_turn(source: object, prompts: object, *, collect: object) -> tuple[Rollout, Scores]:
    """Answers as episodes of one move, all from the same state."""
    rollout, scores = collect(source, prompts)
    return replace(rollout, turn=rollout.mask.long(), state=rollout.mask.long()), scores


class Doubter(LoadedTokenTeachers):
    """A teacher that gives each token a nat less than the student, without other tokens."""

    def logp(self, rollout: Rollout) -> Tensor:
        return rollout.old_logp - 1.0

    def compare(self, rollout: Rollout) -> list:
        return []


@torch.no_grad()
def logp_at(temperature: float, policy: LanguagePolicy, rollout: Rollout) -> Tensor:
    """log softmax(logits / temperature) of the sampled tokens, [B, T], by one forward pass."""
    sample = rollout.sample
    logits = policy.network(input_ids=sample.tokens).logits / temperature
    steps = sample.prompt_length[:, None] + torch.arange(rollout.mask.shape[1])
    column = steps.clamp(max=sample.tokens.shape[1] - 1)
    taken = sample.tokens.gather(1, column)
    row = torch.arange(len(taken))[:, None]
    return logits.log_softmax(-1)[row, column - 1].gather(-1, taken[..., None])[..., 0]


def forgetful(source, prompts, *, collect) -> tuple[Rollout, Scores]:
    """The samples without their temperature."""
    rollout, scores = collect(source, prompts)
    ones = torch.ones_like(rollout.sample.temperature)
    return replace(rollout, sample=replace(rollout.sample, temperature=ones)), scores


# The KL.


def no_kl(algorithm: Algorithm) -> str | None:
    if algorithm.segments:
        return OF_TWO
    if not float(algorithm.kl.coefficient):
        return "no KL to a reference"
    whole = facts_of(getattr(algorithm.kl, "loss", None)).of_bounds
    return "its KL is that of whole answers" if whole else None


def kl_gradient(algorithm: Algorithm) -> None:
    """The KL has the promised gradient in expectation over all samples of a small vocabulary.

    In the loss it is that of each state's own KL; in the reward that of whole samples. For Gaussian
    steps and velocities it is known without a sum.
    """
    if algorithm.reads_errors:
        return regressed_kl_gradient(algorithm)
    if of_steps(algorithm):
        return gaussian_kl_gradient(algorithm)
    policy = TablePolicy(vocab=3, steps=3)
    rollout = every_sample(policy)
    probability = (policy.logp_under(rollout.sample, policy.table) * rollout.mask).sum(1).exp()
    assert probability.sum().item() == pytest.approx(1.0)
    if isinstance(algorithm.kl, KLInReward):
        live = policy.logp_under(rollout.sample, policy.table) - rollout.ref_logp
        truth = probability @ (live * rollout.mask).sum(1)
        got = [loss.sum() for loss in charge(algorithm.kl, policy, rollout, probability.detach())]
    else:
        reverse = kind(algorithm.kl.loss) is not kl.k3
        visits = probability.detach()[:, None] * rollout.mask
        truth = (visits * of_states(policy, reverse=reverse)[rollout.sample.before]).sum()
        weights = {"kl": visits}
        rows = Experience(
            rollout=rollout, scores=blank(rollout), advantages=0.0 * visits, weights=weights
        )
        objective = algorithm.training_objective
        got = [objective.part("kl", objective.record(policy, rows), rows) / algorithm.kl.coef]
    want = torch.autograd.grad(truth, policy.table, retain_graph=True)
    assert want[0].any()
    for loss in got:
        assert_close(torch.autograd.grad(loss, policy.table, retain_graph=True), want, **EXACT)


def gaussian_kl_gradient(algorithm: Algorithm) -> None:
    """The gradient of the squared distance to the reference's mean, in the unit of the KL."""
    bench = Bench(without_penalties(algorithm, kl=0.3))
    rows = bench.first_rows()
    sample, policy = rows.rollout.sample, bench.policy
    own, other = policy.step(sample, policy.table), policy.step(sample, policy.reference)
    dt = (sample.sigma - sample.next_sigma).flatten()
    units = {
        kl.gaussian: 2 * own.std.square(),
        kl.mean_distance: torch.ones_like(dt),
        kl.velocity_distance: own.velocity_gain.square(),
        kl.timeless: 2 * own.std.square() / dt,
    }
    distance = (own.mean - other.mean).square().mean(1) / units[kind(algorithm.kl.loss)]
    truth = (distance.view_as(sample.sigma) * rows.weights["kl"]).sum()
    want = torch.autograd.grad(truth, policy.table, retain_graph=True)
    got = bench.objective.part("kl", bench.objective.record(policy, rows), rows) / 0.3
    assert want[0].any()
    assert_close(torch.autograd.grad(got, policy.table), want, **EXACT)


def regressed_kl_gradient(algorithm: Algorithm) -> None:
    """The gradient of the squared distance to the reference's velocity at the loss's points."""
    bench = Bench(without_penalties(algorithm, kl=0.3))
    rows, policy = bench.first_rows(), bench.policy
    own, other = (policy.velocity_at(rows.rollout, x) for x in (policy.table, policy.reference))
    distance = (own - other).square().mean(-1)
    if kind(algorithm.kl.loss) is kl.reward_adaptive:  # smallest for the worst samples
        least, most = (unwrap_partial(algorithm.kl.loss)[1][x] for x in ("least", "advantage_clip"))
        good = (rows.advantages / most).clamp(-1, 1) / 2 + 0.5
        distance = distance * (least + (1 - least) * good)
    truth = (distance * rows.weights["kl"]).sum()
    want = torch.autograd.grad(truth, policy.table, retain_graph=True)
    got = bench.objective.part("kl", bench.objective.record(policy, rows), rows) / 0.3
    assert want[0].any()
    assert_close(torch.autograd.grad(got, policy.table), want, **EXACT)


def every_sample(policy: TablePolicy) -> Rollout:
    """All possible answers to one prompt, each once, with all fields filled in."""
    every = itertools.product(range(policy.vocab), repeat=policy.steps)
    ended = [(*itertools.takewhile(lambda token: token != STOP, row), STOP) for row in every]
    rows = sorted({(*row, *[STOP] * policy.steps)[: policy.steps] for row in ended})
    tokens = torch.tensor(rows)
    before = torch.cat([torch.ones(len(rows), 1, dtype=torch.int64), tokens[:, :-1]], 1)
    prompts = (Prompt(id=1, source="all", text="?"),) * len(rows)
    sample = TableSample(tokens=tokens, before=before)
    rollout = policy.rollout(sample, torch.zeros(len(rows), dtype=torch.int64), prompts)
    return policy.complete(rollout, frozenset({"old_logp", "old_kl_to_ref"}))


def of_states(policy: TablePolicy, *, reverse: bool) -> Tensor:
    """KL(policy || reference) of the next token in each state; else KL(reference || policy). [V]"""
    own, other = policy.table.log_softmax(-1), policy.reference.log_softmax(-1)
    first, second = (own, other) if reverse else (other, own)
    return (first.exp() * (first - second)).sum(-1)


def blank(rollout: Rollout) -> Scores:
    """A score of 0 for each sample."""
    zero = torch.zeros(len(rollout.mask), dtype=torch.float64)
    return Scores(total=zero, parts={}, scored=torch.ones_like(zero).bool())


def charge(
    penalty: KLInReward, policy: TablePolicy, rollout: Rollout, probability: Tensor
) -> list[Tensor]:
    """-A log p per unit of the coefficient, where A is the total after the charge to a reward of 0,
    then the return from each step on."""
    scores = penalty.charge(blank(rollout), rollout, in_time=True)
    whole = scores.total[:, None].expand_as(rollout.mask)
    logp = torch.where(rollout.mask, policy.logp_under(rollout.sample, policy.table), 0)
    weight = probability[:, None] / penalty.coef
    return [-x * logp * weight for x in (whole, return_to_go(scores.per_step, rollout.mask))]


# Preferences.


def no_preference(algorithm: Algorithm) -> str | None:
    return None if prefers(algorithm) else "has no chosen and rejected answers"


def turn(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
    """Chosen and rejected exchanged."""
    return replace(scores, total=-scores.total), rollout


def antisymmetry(algorithm: Algorithm) -> None:
    """Exchanging chosen and rejected exchanges their metrics and changes the sign of margins.

    At the reference itself the gradient changes sign too.
    """
    metrics = []
    for change in (None, turn):
        bench = Bench(algorithm, Setting(change=change))
        metrics.append(reduce_metrics(bench.objective(bench.policy, bench.first_rows()).metrics))
    before, after = ({k: v for k, v in m.items() if k.startswith("preference/")} for m in metrics)
    for of in ("reward", "logp"):
        pair = [f"preference/{side}_{of}" for side in ("chosen", "rejected")]
        assert [after[key] for key in pair] == pytest.approx([before[key] for key in pair[::-1]])
        assert before[pair[0]] != before[pair[1]]
    if "preference/margin" in before:
        assert after["preference/margin"] == pytest.approx(-before["preference/margin"])
        assert after["preference/accuracy"] == pytest.approx(1 - before["preference/accuracy"])
    if "ref_logp" in facts_of(algorithm.loss).reads:
        forth, back = (at_the_reference(algorithm, change) for change in (None, turn))
        assert forth.any()
        assert_close(forth, -back, **EXACT)


def at_the_reference(algorithm: Algorithm, change) -> Tensor:
    """The first gradient of a policy that equals its reference."""
    bench = Bench(algorithm, Setting(change=change))
    bench.policy.table.data.copy_(bench.policy.reference)
    outcome = bench.objective(bench.policy, bench.first_rows())
    return torch.autograd.grad(outcome.loss, bench.policy.table)[0]
