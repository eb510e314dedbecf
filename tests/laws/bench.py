"""Any algorithm on a policy without a network, in the real loop, without a trainer.

A policy of tokens is a table; a policy of Gaussian steps, or of velocity errors, has a linear
velocity field.
"""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path

import torch
from at_once import AtOnce
from chain_policy import TableChain
from error_policy import ErrorPolicy, TaughtPolicy
from gaussian_policy import GaussianPolicy, GaussianSample
from loop import Alone
from matching_policy import MatchingPolicy
from omegaconf import DictConfig, OmegaConf
from table_policy import TablePolicy, TableSample
from torch import Tensor, nn
from torch.testing import assert_close

from tandem import rng
from tandem.advantages.passk import pass_at_k
from tandem.algorithm.algorithm import ON_ERRORS, Algorithm
from tandem.config import build, compose
from tandem.config.composition import conf_folder
from tandem.contracts import declare, facts_of, unwrap_partial
from tandem.experience import Budget, Experience
from tandem.policies.chain.records import ChainSample
from tandem.settings.guards import Guards
from tandem.settings.renamed import OF_THE_RUN
from tandem.training.batches import BatchPlan
from tandem.types import Prompt, Rollout, Scores

EXACT = {"rtol": 1e-9, "atol": 1e-12}
# Most answers are likelier than under the reference, so KTO measures a KL.
ANSWERS = ("40", "320", "5140", "20", "2220", "50", "3140")
# A sampler may be wrong and a step long: laws hold anyway, and guards have their own law.
OPEN = Guards(
    first_update_ratio=torch.inf, max_mismatch=torch.inf, no_signal=99, max_missing_rewards=1.0
)
WHOLE = Budget()
Change = Callable[[Scores, Rollout], tuple[Scores, Rollout]]


def names() -> list[str]:
    """Every preset of conf/algorithm."""
    return sorted(path.stem for path in (conf_folder() / "algorithm").glob("[!_]*.yaml"))


def of_errors(preset: Path) -> bool:
    """Whether a preset is trained on velocity errors or on images predicted by networks."""
    return OmegaConf.load(preset).get("objective") in ON_ERRORS


OF_FLOWS = {
    *("dance_grpo", "flow_dppo", "flow_grpo", "gardo", "grpo_guard", "mix_grpo", "tempflow_grpo"),
}
# A reward of the bench in place of the preset's own.
NAMED = {"gardo": ["algorithm.advantage.distance=short", "algorithm.kl.gate.auxiliary=[short]"]}
OF_CHAINS = {"unigrpo"}
# All networks learn in every iteration of the bench.
NAMED |= {name: ["algorithm.policy_every=1"] for name in ("dmd2", "tdm")}
TAUGHT = ["algorithm.teachers.folders={others:teacher}"]  # the policy here has its own teacher


@cache
def _build(name: str) -> Algorithm:
    flow = name in OF_FLOWS or of_errors(conf_folder() / "algorithm" / f"{name}.yaml")
    model = ["model=tiny_flow"] if flow else ["model=tiny_chain"] if name in OF_CHAINS else []
    text = (conf_folder() / "algorithm" / f"{name}.yaml").read_text(encoding="utf-8")
    taught = TAUGHT if re.search("override teachers: [tv]", text) else []
    chosen = [f"algorithm={name}", "~recipe", *model, *taught, *NAMED.get(name, [])]
    return load_preset(compose(chosen))


@dataclass(frozen=True, kw_only=True)
class Published(Algorithm):
    """An algorithm with the batch numbers that its file publishes."""

    group_size: int
    num_minibatches: int
    epochs: int


def load_preset(cfg: DictConfig) -> Published:
    """The algorithm of a configuration."""
    algorithm, own = build(cfg.algorithm), {name: cfg[name] for name in OF_THE_RUN}
    parts = {part.name: getattr(algorithm, part.name) for part in fields(algorithm) if part.init}
    return Published(**parts, **own)


def of_steps(algorithm: Algorithm) -> bool:
    """Whether it trains Gaussian steps: one of its parts refuses tokens."""
    parts = (algorithm.loss, getattr(algorithm.kl, "loss", None))
    every = [facts_of(part) for part in parts]
    return any("tokens" in facts.refused and not facts.of_bounds for facts in every)


def policy_of(algorithm: Algorithm, dtype: torch.dtype) -> nn.Module:
    if algorithm.segments:
        return TableChain(algorithm, dtype)
    if algorithm.networks:
        return MatchingPolicy(algorithm, dtype)
    if algorithm.objective == "distillation":
        return TaughtPolicy(dtype)
    if algorithm.reads_errors:
        return ErrorPolicy(algorithm, dtype)
    if of_steps(algorithm):
        return GaussianPolicy(dtype=dtype)
    return TablePolicy(dtype=dtype, critic=algorithm.critic is not None)


def preset(name: str) -> Algorithm:
    """A preset with its published numbers and its own state."""
    return copy.deepcopy(_build(name))


class Digits(AtOnce):
    """Two rewards of a text: 0, 1/2 or 1 by the sum of its characters, and 1/4 if it is short.

    A text of three or more characters that begins with 4 has no score; every answer to each fifth
    prompt is right. `binary` keeps only scores of 0 and 1.
    """

    def __init__(self, binary: bool, dtype: torch.dtype) -> None:
        self.binary, self.dtype = binary, dtype

    def __call__(self, outputs, prompts) -> Scores:
        rows = [self.rewards(output, p) for output, p in zip(outputs, prompts, strict=True)]
        both = torch.tensor(rows, dtype=self.dtype)
        total = both.sum(1)
        parts = dict(zip(("right", "short"), both.unbind(1), strict=True))
        scored = total.isfinite()
        return Scores(total=torch.where(scored, total, 0), parts=parts, scored=scored)

    def rewards(self, output: str, prompt: Prompt) -> tuple[float, float]:
        if output[:1] == "4" and len(output) > 2:
            return torch.nan, torch.nan
        if prompt.id % 5 == 3:
            return 1.0, 0.0
        right = (0.0, 1.0, 0.5)[sum(map(ord, output)) % 3]
        return (float(right == 1.0), 0.0) if self.binary else (right, 0.25 * (len(output) < 4))


class Numbered(nn.Module):
    """Prompts by number, with a demonstration and a pair of answers each."""

    def draw(self, iteration: int, count: int, *, round: int = 0) -> list[Prompt]:
        first = 100 * iteration + 31 * round
        return [self.prompt(first + i) for i in range(count)]

    def prompt(self, id: int) -> Prompt:
        chosen, rejected = ANSWERS[id % 7], ANSWERS[(id + 1 + id % 5) % 7]
        text = f"{'dbca'[id % 4 :]}{'fgh'[id % 3]}>"
        return Prompt(
            id=id, source="digits", text=text, answer=chosen, chosen=chosen, rejected=rejected
        )

    def observe(self, sources, success) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings that a law varies; the defaults are the baseline."""

    budget: Budget = WHOLE
    change: Change | None = None  # of the complete rows
    policy: Callable[[], nn.Module] | None = None  # instead of one without a network
    dtype: torch.dtype = torch.float64  # of the one without a network
    guards: Guards = OPEN
    epochs: int = 2  # more than the presets have: with one update every ratio would be 1
    lr: float = 4.0
    seed: int = 1


class Bench(Alone):
    """Plain SGD that records gradients and statistics."""

    def __init__(self, algorithm: Algorithm, setting: Setting | None = None) -> None:
        setting = setting or Setting()
        policy = (setting.policy or partial(policy_of, algorithm, setting.dtype))()
        small = isinstance(policy, TablePolicy | GaussianPolicy | TableChain)
        dtype = setting.dtype if small else torch.float32
        binary = unwrap_partial(algorithm.advantage)[0] is pass_at_k
        super().__init__(
            policy=policy,
            algorithm=change(algorithm, setting.change),
            rewards=Digits(binary, dtype),
            stream=Numbered(),
            optimizer=partial(torch.optim.SGD, lr=setting.lr),
            plan=plan_of(algorithm, setting),
            guards=setting.guards,
            folder=Path(tempfile.gettempdir()) / "tandem_laws",
        )
        self.gradients: list[Tensor] = []
        self.statistics: list[dict[str, Tensor]] = []

    def update(self, minibatch: Experience) -> None:
        self.statistics.append(dict(minibatch.statistics))
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters()]
        self.gradients.append(torch.cat([part.flatten() for part in parts]))
        super().update(minibatch)

    def first_rows(self) -> Experience:
        """All rows of the first update, with weights and statistics."""
        prompts = self.stream.draw(0, self.plan.prompts_per_step)
        rollout, scores = self.algorithm.sampling_strategy(self.source, dict(enumerate(prompts)))
        rollout = self.policy.complete(rollout, self.needs)
        experience = self.algorithm.experience(scores, rollout)
        minibatch = next(iter(self.minibatches(experience)))
        return self.objective.add_statistics(self.policy, minibatch, self.plan.budget)


def plan_of(algorithm: Algorithm, setting: Setting) -> BatchPlan:
    """An odd number of groups, about 24 rows, and the preset's own number of updates."""
    return BatchPlan(
        seed=setting.seed,
        iterations=2,
        prompts_per_step=max(5, 24 // algorithm.group_size - 1),
        group_size=algorithm.group_size,
        num_minibatches=algorithm.num_minibatches,
        epochs=setting.epochs,
        budget=setting.budget,
        max_grad_norm=1.0,
    )


def change(algorithm: Algorithm, change: Change | None) -> Algorithm:
    """The algorithm with `change` applied to complete rows, before they are compared."""
    algorithm = copy.deepcopy(algorithm)
    if change is None:
        return algorithm

    def handled(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
        return algorithm.truncation_handling(*change(scores, rollout))

    reads = facts_of(algorithm.truncation_handling).reads
    return replace(algorithm, truncation_handling=declare(reads=reads)(handled))


def disagreeing(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
    """A slightly different sampler, which gives corrections something to do.

    The difference is a function of the step, as for any network: equal steps get the same one.
    """
    if rollout.behaviour_logp is None:
        return scores, rollout
    noise = rng.unit(rng.key("off", _step_ids(rollout.sample))).to(rollout.behaviour_logp) - 0.5
    return scores, replace(rollout, behaviour_logp=rollout.behaviour_logp + 0.4 * noise)


def _step_ids(sample: GaussianSample | TableSample | ChainSample) -> Tensor:
    """[B, T] int64, an identifier of each step."""
    if isinstance(sample, ChainSample):
        return torch.cat([_step_ids(sample.picture), _step_ids(sample.text)], 1)
    return (
        sample.taken if isinstance(sample, GaussianSample) else 10 * sample.before + sample.tokens
    )


def run(algorithm: Algorithm, iterations: int = 1, **varied) -> Bench:
    """That many iterations under a setting, with a slightly different sampler."""
    change = varied.pop("change", None)

    def both(scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
        scores, rollout = disagreeing(scores, rollout)
        return (scores, rollout) if change is None else change(scores, rollout)

    return Bench(algorithm, Setting(change=both, **varied)).go(iterations)


def agree(got: Bench, want: Bench, **tolerance: float) -> None:
    """Assert equal gradients in every update, equal reports, and that some gradient is not 0."""
    assert any(bool(gradient.any()) for gradient in want.gradients)
    assert_close(got.gradients, want.gradients, **(tolerance or EXACT))
    assert_close(got.report, want.report, **(tolerance or EXACT))
