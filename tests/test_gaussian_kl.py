"""The KL of Gaussian steps: its gradient through a real objective, its charge and its metrics."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from records import GRPO, rollout, scores
from torch.testing import assert_close

from tandem import rng
from tandem.algorithm.coupled import Coupled
from tandem.algorithm.regularizers import KLInLoss, KLInReward
from tandem.config import ConfigError, build, check, compose
from tandem.config.composition import conf_folder
from tandem.contracts import unwrap_partial
from tandem.dynamics.kernels import cps, dance_sde, flow_sde
from tandem.dynamics.likelihood import gaussian_kl, gaussian_logp, step_log_ratio
from tandem.experience import Experience
from tandem.losses import kl
from tandem.losses.reduction import token_mean
from tandem.metrics import reduce_metrics
from tandem.types import Evidence, Transition

KERNELS = {"flow_sde": flow_sde, "dance_sde": dance_sde, "cps": cps}
LEVELS = torch.tensor([1.0, 0.8, 0.5, 0.3], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, False, True]])
# d/dv of each loss of a step, per (v - v_ref) / D, by hand from mean = a x + g v.
SLOPES = {
    kl.gaussian: lambda gain, std, dt: gain**2 / std**2,
    kl.mean_distance: lambda gain, std, dt: 2 * gain**2,
    kl.velocity_distance: lambda gain, std, dt: 2.0 + 0 * gain,
    kl.timeless: lambda gain, std, dt: gain**2 / std**2 * dt,
}
EXACT = {"atol": 1e-10, "rtol": 1e-10}


@dataclass
class Velocities:
    """A policy that consists of its velocity at every step and its reference's."""

    kernel: object
    size: int  # D

    def __post_init__(self):
        shape = (*MASK.shape, self.size)
        noise = rng.normal(rng.key("velocities"), (4, *shape)).double()
        self.x, self.next_x, self.ref, own = noise
        self.own = own.requires_grad_()
        self.sigma, self.next_sigma = (x.expand(MASK.shape) for x in (LEVELS[:-1], LEVELS[1:]))

    def step(self, velocity):
        return self.kernel(self.x, velocity, self.sigma, self.next_sigma)

    def evidence(self, rollout, needs):
        step, garbage = self.step(self.own), torch.tensor(torch.nan)
        facts = {"std": step.std, "velocity_gain": step.velocity_gain}
        facts |= {"sigma": self.sigma, "next_sigma": self.next_sigma}
        if "kl_to_ref" in needs:
            facts["kl_to_ref"] = gaussian_kl(step, self.step(self.ref).mean)
        if "kl_to_old" in needs:
            facts["kl_to_old"] = gaussian_kl(step, step.mean.detach())
        transition = Transition(**{n: torch.where(MASK, x, garbage) for n, x in facts.items()})
        logp = torch.where(MASK, gaussian_logp(self.next_x, step), garbage)
        return Evidence(logp=logp, transition=transition)

    def rows(self, **known):
        samples = rollout(MASK, torch.tensor([0, 0]), behaviour_logp=0.0 * MASK, **known)
        advantages = 0.0 * MASK
        weights = {"kl": token_mean(MASK), "policy": token_mean(MASK)}
        return Experience(
            rollout=samples, scores=scores(torch.zeros(2)), advantages=advantages, weights=weights
        )


def gradient_by_hand(policy, loss, coef, weights):
    """The gradient of coef x the weighted sum of the loss over steps, in closed form."""
    step = policy.step(policy.own.detach())
    dt = policy.sigma - policy.next_sigma
    slope = SLOPES[loss](step.velocity_gain, step.std, dt) * weights
    return coef * slope[..., None] * (policy.own.detach() - policy.ref) / policy.size


@pytest.mark.parametrize("size", [1, 768])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("loss", SLOPES, ids=lambda loss: loss.__name__)
def test_the_gradient_of_every_kl_is_the_closed_form(loss, kernel, size):
    policy = Velocities(KERNELS[kernel], size)
    objective = Coupled({"kl": KLInLoss(coef=0.3, loss=loss).term_beside(token_mean)})
    outcome = objective(policy, policy.rows())
    outcome.loss.backward()
    assert_close(policy.own.grad, gradient_by_hand(policy, loss, 0.3, token_mean(MASK)), **EXACT)
    exact = gaussian_kl(policy.step(policy.own), policy.step(policy.ref).mean)[MASK].mean()
    metrics, paid = reduce_metrics(outcome.metrics), outcome.parts["kl"].item() / 0.3
    assert metrics["actor/ref_kl"] == pytest.approx(exact.item(), rel=1e-12)
    assert metrics["actor/kl_penalty"] == pytest.approx(paid, rel=1e-6)  # most are not a KL


def test_a_penalty_is_measured_over_the_rows_that_its_gate_holds():
    policy = Velocities(flow_sde, 1)
    rows = replace(policy.rows(), gates={"kl": torch.tensor([True, False])})
    objective = Coupled({"kl": KLInLoss(coef=0.3, loss=kl.gaussian).term_beside(token_mean)})
    held = replace(rows, weights=rows.weights | objective.weigh(rows))
    outcome = objective(policy, held)
    paid = outcome.parts["kl"] / (0.3 * held.weights["kl"].sum())
    metrics = reduce_metrics(outcome.metrics)
    assert metrics["actor/kl_penalty"] == pytest.approx(paid.item(), rel=1e-6)
    assert metrics["actor/ref_kl"] != pytest.approx(paid.item(), rel=1e-2)


def test_what_is_estimated_from_a_mean_over_dimensions_is_as_many_times_too_small():
    """The reason why k2 and k3 are refused on Gaussian steps, over draws of the step itself."""
    size, count = 16, 4096
    policy = Velocities(flow_sde, size)
    policy.ref = policy.own.detach() + 0.1  # close, where k2 is right in one dimension
    step, other = policy.step(policy.own.detach()), policy.step(policy.ref)
    noise = rng.normal(rng.key("steps"), (count, *policy.x.shape)).double()
    x = step.mean + step.std[..., None] * torch.cat([noise, -noise])
    gap = log_density(x, step) - log_density(x, other)
    estimate, exact = (gap.square() / 2).mean(0), gaussian_kl(step, other.mean)
    assert_close(exact / estimate, torch.full_like(exact, size), rtol=0.1, atol=0)
    assert_close(gap.mean(0), exact, rtol=1e-6, atol=0)  # k1 is of first order: right, but noisy


def log_density(x, step):
    """Log-densities of many draws from each step: [N, B, T]"""
    many = replace(step, mean=step.mean.expand_as(x), std=step.std.expand(x.shape[:-1]))
    return gaussian_logp(x, many)


def test_the_reward_is_charged_and_the_metric_is_of_the_old_policy():
    policy = Velocities(flow_sde, 768)
    old = gaussian_kl(policy.step(policy.own.detach()), policy.step(policy.ref).mean)
    rows = policy.rows(old_kl_to_ref=old.where(MASK, torch.nan))
    paying = KLInReward(coef=0.2)
    charged = paying.charge(scores(torch.tensor([1.0, 0.5])), rows.rollout, in_time=True)
    want = torch.tensor([1.0, 0.5]).double() - 0.2 * torch.where(MASK, old, 0).sum(1)
    assert_close(charged.total, want, **EXACT)
    assert paying.reads_before == {"old_kl_to_ref"}
    metrics = reduce_metrics(replace(GRPO, kl=paying).training_objective(policy, rows).metrics)
    assert metrics["actor/ref_kl"] == pytest.approx(old[MASK].mean().item(), rel=1e-12)


@pytest.fixture(scope="module")
def presets() -> dict:
    """Name -> (algorithm, kernel) of the presets that have a KL of sampled steps on a flow."""
    found = {}
    for name in sorted(path.stem for path in (conf_folder() / "algorithm").glob("[!_]*.yaml")):
        cfg = compose([f"algorithm={name}", "model=tiny_flow", "~recipe"])
        try:
            kernel = check(cfg).dynamics.kernel
        except ConfigError:  # refused: tests/config/test_config_legal.py has the lines
            continue
        algorithm = build(cfg.algorithm)
        if float(algorithm.kl.coefficient) and not algorithm.reads_errors:
            found[name] = algorithm, kernel
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 768])
def test_the_kl_of_every_preset_is_the_closed_form(presets, size):
    """Its gradient through the whole objective."""
    for name, (algorithm, kernel) in presets.items():
        if not isinstance(algorithm.kl, KLInLoss):
            continue
        policy, penalty = Velocities(kernel, size), algorithm.kl
        rows = policy.rows()
        rows = replace(rows, weights=algorithm.training_objective.weigh(rows))
        algorithm.training_objective(policy, rows).loss.backward()
        loss = unwrap_partial(penalty.loss)[0]
        want = gradient_by_hand(policy, loss, penalty.coef, algorithm.weights(MASK))
        assert_close(policy.own.grad, want, **EXACT, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("size", [1, 768])
@pytest.mark.parametrize("kernel", [flow_sde, dance_sde, cps])
def test_what_a_reward_pays_pulls_a_policy_gradient_as_the_kl_itself(kernel, size):
    """E[score x cost] by quadrature along the line between the means: cubic in the noise, so five
    nodes are exact. The exact KL as a cost would have no gradient, since it is equal for all x'."""
    policy = Velocities(kernel, size)
    step, other = policy.step(policy.own.detach()), policy.step(policy.ref)
    std, gap = step.std[..., None], step.mean - other.mean
    length = gap.norm(dim=-1, keepdim=True)
    along = gap / length
    nodes, weights = (torch.tensor(x) for x in np.polynomial.hermite_e.hermegauss(5))
    pull = torch.zeros_like(gap)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        x = step.mean + std * node * along
        cost = step_log_ratio(x, step, other)
        pull += weight * (x - step.mean) / std.square() * cost[..., None]
    assert_close(pull, gap / std.square(), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_presets_pay_their_kl_in_either_place(presets):
    kinds = {type(algorithm.kl) for algorithm, _ in presets.values()}
    assert kinds == {KLInLoss, KLInReward}
    in_loss = {"grpo", "flow_grpo", "tempflow_grpo", "flow_dppo"}
    assert in_loss | {"ppo", "rloo", "reinforce_pp"} <= presets.keys()
