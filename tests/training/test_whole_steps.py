"""One `training_step` of a whole policy compared with a second implementation of the algorithm.

Rows are read one at a time without padding, advantages are plain numbers, and the optimiser is its
formula. Only the samples, and the groups of each update, are taken from the step.
"""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import exp, isnan, log, pi, sqrt

import torch
from loop import PLAN, Alone, ShareOfThrees
from policies.flow.small_flow import make_prompts
from policies.flow.small_flow import small as small_flow
from policies.small_language import questions, small, train_briefly
from records import GRPO
from torch.testing import assert_close

from tandem.advantages.clipped import Clipped
from tandem.advantages.group import batch_population_std, group_relative
from tandem.algorithm.regularizers import EntropyBonus, KLInLoss
from tandem.losses.kl import k3_unbiased, timeless
from tandem.losses.policy import ppo
from tandem.policies.flow.families.tiny_flow import read
from tandem.policies.language.records import Sampling
from tandem.settings.guards import Guards

MOMENTUM, DECAY = 0.9, 0.01
GROUPS, SIZE = 3, 4
GIVEN = [1.0, 0.0, 0.25, float("nan"), 0.5, 0.5, 0.5, 0.5, 0.0, 1.0, 1.0, 0.25]


class Prompts(torch.nn.Module):
    def __init__(self, prompts):
        super().__init__()
        self.prompts = prompts

    def draw(self, iteration, count, *, round=0):
        return self.prompts[:count]

    def observe(self, sources, success):
        pass


class Watched(Alone):
    """Records the groups of each update, and the norm of its gradient."""

    def __init__(self, prompts, *, rate, norm, **options):
        super().__init__(
            **options, stream=Prompts(prompts), rewards=ShareOfThrees(list(GIVEN)),
            guards=Guards(max_mismatch=9.0),
            optimizer=partial(torch.optim.SGD, lr=rate, momentum=MOMENTUM, weight_decay=DECAY),
            plan=replace(PLAN, prompts_per_step=GROUPS, group_size=SIZE, max_grad_norm=norm),
        )  # fmt: skip
        self.updates = []

    def update(self, minibatch):
        self.updates.append({*minibatch.rollout.group.tolist()})
        super().update(minibatch)


def advantages_of(rewards, groups, scale):
    """(R - mean) / scale within the group, `scale` a function of its scores; 0 without a score."""
    found = []
    for reward, group in zip(rewards, groups, strict=True):
        own = [r for r, g in zip(rewards, groups, strict=True) if g == group and not isnan(r)]
        mean = sum(own) / len(own)
        found.append(0.0 if isnan(reward) else (reward - mean) / (scale(own) + 1e-6))
    return found


def unbiased(numbers):
    mean = sum(numbers) / len(numbers)
    return sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


class Descent:
    """SGD with a clipped norm, momentum and weight decay."""

    def __init__(self, parameters, *, rate, norm):
        self.parameters, self.rate, self.norm = parameters, rate, norm
        self.memory, self.norms = None, []

    def step(self, loss):
        gradients = torch.autograd.grad(loss, self.parameters)
        self.norms.append(sqrt(sum(float((g**2).sum()) for g in gradients)))
        share = min(1.0, self.norm / (self.norms[-1] + 1e-6))
        pulls = [
            share * g + DECAY * p.detach() for g, p in zip(gradients, self.parameters, strict=True)
        ]
        self.memory = pulls if self.memory is None else [
            MOMENTUM * m + g for m, g in zip(self.memory, pulls, strict=True)
        ]  # fmt: skip
        with torch.no_grad():
            for parameter, velocity in zip(self.parameters, self.memory, strict=True):
                parameter -= self.rate * velocity


def read_answer(network, tokens, start):
    """log p and entropy of each token of an answer, which begins at `start`."""
    whole = network(input_ids=tokens[None]).logits[0, start - 1 : -1].log_softmax(-1)
    return whole.gather(1, tokens[start:, None])[:, 0], -(whole.exp() * whole).sum(1)


def test_a_step_of_grpo_is_the_algorithm_box_written_once_more(tmp_path):
    """Two epochs of two updates with a KL, a two-sided clip, an entropy bonus, and a sampler with
    different log-probabilities."""
    algorithm = replace(
        GRPO, loss=partial(ppo, clip_low=0.02, clip_high=0.03), entropy=EntropyBonus(coef=0.02),
        kl=KLInLoss(coef=0.05, loss=k3_unbiased),
    )  # fmt: skip
    policy = train_briefly(small(algorithm.needs, sampling=Sampling(max_new_tokens=8)), steps=8)
    for model in (policy, policy.reference.model):
        model.double()
    network, reference, draw = deepcopy(policy.network), policy.reference.model, policy.sample
    seen = []

    def sample(*args, **options):
        rows = draw(*args, **options)
        noise = torch.randn(rows.mask.shape, generator=torch.Generator().manual_seed(0))
        behaviour = (rows.behaviour_logp.double() + 0.4 * noise) * rows.mask
        seen.append(replace(rows, behaviour_logp=behaviour))
        return seen[0]

    policy.sample = sample
    numbers = {"rate": 0.02, "norm": 0.6}
    loop = Watched(questions(), policy=policy, algorithm=algorithm, folder=tmp_path, **numbers).go()
    [rows] = seen
    answers = [
        rows.sample.tokens[i, : int(rows.sample.prompt_length[i] + rows.length[i])]
        for i in range(len(GIVEN))
    ]
    starts = rows.sample.prompt_length.tolist()
    assert len({len(answer) for answer in answers}) > 3

    def ask(model, places):
        return {i: read_answer(model, answers[i], starts[i]) for i in places}

    with torch.no_grad():
        old, ref = (ask(model, range(len(GIVEN))) for model in (network, reference))
    advantages = advantages_of(GIVEN, rows.group.tolist(), unbiased)
    descent, clipped = Descent([*network.parameters()], **numbers), {-1: 0, 1: 0}
    assert len(loop.updates) == 4
    for groups in loop.updates:
        mine = [i for i, group in enumerate(rows.group.tolist()) if group in groups]
        now, loss = ask(network, mine), 0.0
        steps = sum(len(now[i][0]) for i in mine)
        for i in mine:
            logp, entropy = now[i]
            for t in range(len(logp)):
                ratio, a = (logp[t] - old[i][0][t]).exp(), advantages[i]
                gain = torch.minimum(a * ratio, a * ratio.clamp(0.98, 1.03))
                clipped[1 if a > 0 else -1] += bool(gain < a * ratio)
                trust = min(exp(float(old[i][0][t] - rows.behaviour_logp[i, t])), 2.0)
                apart = logp[t] - ref[i][0][t]
                kl = ratio * ((-apart).exp() + apart - 1)
                loss = loss + (0.05 * kl - trust * gain) / len(logp) / len(mine)
                loss = loss - 0.02 * entropy[t] / steps
        descent.step(loss)
    assert all(clipped.values()) and min(descent.norms) < descent.norm < max(descent.norms)
    for got, want in zip(policy.network.parameters(), network.parameters(), strict=True):
        assert_close(got, want, atol=1e-9, rtol=0)


LEVELS = [3 * u / (1 + 2 * u) for u in (1.0, 0.8, 0.6, 0.4, 0.2)]  # shifted by 3
ETA, DIMENSIONS = 0.7, 3 * 16 * 16


def read_course(network, text, path):
    """For each random step of an image: log p of the next state, its mean, and s.

    `path`: the states from noise on; means over the latent dimensions, under Flow-SDE.
    """
    count = len(path) - 1
    levels = torch.tensor(LEVELS[:count], dtype=torch.float64)
    words = {name: x.double().expand(count, *x.shape) for name, x in read(text).items()}
    x, after = path[:-1].double(), path[1:].double()
    v = network(
        hidden_states=x, timestep=1000 * levels, encoder_hidden_states=words["states"],
        pooled_projections=words["pooled"], return_dict=False,
    )[0]  # fmt: skip
    found = []
    for t in range(count):
        sigma, dt = LEVELS[t], LEVELS[t + 1] - LEVELS[t]
        s = ETA * sqrt(sigma / (1 - (LEVELS[1] if sigma == 1 else sigma)))
        mean = x[t] * (1 + s**2 / (2 * sigma) * dt)
        mean = mean + v[t] * (1 + s**2 * (1 - sigma) / (2 * sigma)) * dt
        std = s * sqrt(-dt)
        error = ((after[t] - mean) ** 2).sum() / DIMENSIONS
        found.append((-error / (2 * std**2) - log(std) - log(2 * pi) / 2, mean, s))
    return found


def population(numbers):
    mean = sum(numbers) / len(numbers)
    return sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers))


def test_a_step_of_flow_grpo_is_the_algorithm_box_written_once_more(tmp_path):
    """Two epochs of two updates with the published KL; scores over the std of all of them."""
    clip = 1e-5
    algorithm = replace(
        GRPO, loss=partial(ppo, clip_low=clip, clip_high=clip),
        kl=KLInLoss(coef=0.04, loss=timeless),
        advantage=Clipped(
            partial(group_relative, scale=batch_population_std, eps=1e-4), bound=1.2
        ),
    )  # fmt: skip
    policy = small_flow(algorithm.needs, steps=len(LEVELS))
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():  # away from the reference, which has the loaded weights
        for parameter in policy.model.network.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=chance)
    reference = policy.model.frozen.network
    for model in (policy, reference):
        model.double()
    network, draw, seen = deepcopy(policy.model.network), policy.sample, []

    def sample(*args, **options):
        seen.append(draw(*args, **options))
        return seen[0]

    policy.sample = sample
    numbers = {"rate": 0.5, "norm": 0.02}
    loop = Watched(
        make_prompts(), policy=policy, algorithm=algorithm, folder=tmp_path, **numbers
    ).go()
    [rows] = seen
    course = rows.sample.trajectory
    assert_close(course.sigma, torch.tensor(LEVELS[:-1]).expand(len(GIVEN), -1), check_dtype=False)

    def ask(model, places):
        return {i: read_course(model, rows.prompts[i].text, course.path[i]) for i in places}

    with torch.no_grad():
        old, ref = (ask(model, range(len(GIVEN))) for model in (network, reference))
    scored = [r for r in GIVEN if not isnan(r)]
    spread = advantages_of(GIVEN, rows.group.tolist(), lambda own: population(scored) + 1e-4 - 1e-6)
    advantages = [max(min(a, 1.2), -1.2) for a in spread]
    assert advantages != spread
    descent, clipped = Descent([*network.parameters()], **numbers), 0
    assert len(loop.updates) == 4
    for groups in loop.updates:
        mine = [i for i, group in enumerate(rows.group.tolist()) if group in groups]
        now, loss = ask(network, mine), 0.0
        for i in mine:
            for t, (logp, mean, s) in enumerate(now[i]):
                ratio, a = (logp - old[i][t][0]).exp(), advantages[i]
                gain = torch.minimum(a * ratio, a * ratio.clamp(1 - clip, 1 + clip))
                clipped += bool(gain < a * ratio)
                kl = ((mean - ref[i][t][1]) ** 2).sum() / DIMENSIONS / (2 * s**2)
                loss = loss + (0.04 * kl - gain) / len(now[i]) / len(mine)
        descent.step(loss)
    assert clipped and min(descent.norms) < descent.norm < max(descent.norms)
    for got, want in zip(policy.model.network.parameters(), network.parameters(), strict=True):
        assert_close(got, want, atol=1e-9, rtol=0)
