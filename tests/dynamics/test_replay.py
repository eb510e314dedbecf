"""Replay of a rollout in training: the first ratio is 1, and after an update it is not."""

import pytest
import torch
from flows import NOISY
from torch import nn
from torch.testing import assert_close

from tandem.dynamics.kernels import next_state, ode
from tandem.dynamics.likelihood import gaussian_kl, gaussian_logp, unscaled_logp
from tandem.dynamics.schedules import linear_shift
from tandem.dynamics.steps import every_step
from tandem.rng import key, normal

ROWS, SIZE, STEPS = 8, 16, 6
EACH_NOISY = pytest.mark.parametrize("name", NOISY)
STORAGE = pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.float16])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(SIZE + 1, 32), nn.SiLU(), nn.Linear(32, SIZE))

    def forward(self, x, sigma):
        return self.layers(torch.cat([x, sigma[:, None]], 1))


@torch.no_grad()
def rollout(net, kernel, logp, storage):
    """The stored parts of the stochastic steps: x, next x, sigma, next sigma, logp, by step."""
    sigmas = linear_shift(STEPS, 0)
    noisy, kept = every_step(STEPS, 0, 0), []
    x = normal(key(0, "start"), (ROWS, SIZE)).to(storage).float()
    for number in range(STEPS):
        sigma, after = sigmas[number].expand(ROWS), sigmas[number + 1].expand(ROWS)
        step = (kernel if number in noisy else ode)(x, net(x, sigma), sigma, after)
        reached = next_state(step, normal(key(0, "step", number), (ROWS, SIZE)), storage=storage)
        if number in noisy:
            stored = [x.to(storage), reached.to(storage), sigma, after]
            kept.append((*stored, logp(reached, step), step.mean))
        x = reached
    return kept


def replay(net, kernel, x, next_x, sigma, after):
    step = kernel(x, net(x.float(), sigma), sigma, after)
    return step, next_x.float()


def ratios(net, kernel, logp, kept):
    found = []
    for *stored, old_logp, _ in kept:
        step, next_x = replay(net, kernel, *stored)
        found.append((logp(next_x, step) - old_logp).exp())
    return torch.cat(found)


@STORAGE
@pytest.mark.parametrize(
    ("name", "logp"), [*((name, gaussian_logp) for name in NOISY), ("CPS", unscaled_logp)]
)
def test_the_first_ratio_is_exactly_one_and_the_second_is_not(name, logp, storage):
    net, kernel = Net(), NOISY[name]
    kept = rollout(net, kernel, logp, storage)
    first = ratios(net, kernel, logp, kept)
    assert first.shape == (ROWS * (STEPS - 1),)
    assert (first == 1).all()
    (-first.log() * torch.linspace(-1, 1, len(first))).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1e-2).step()
    assert (ratios(net, kernel, logp, kept) - 1).abs().min() > 1e-6


@STORAGE
@EACH_NOISY
def test_all_steps_in_one_micro_batch_have_the_same_ratio(name, storage):
    net, kernel = Net(), NOISY[name]
    kept = rollout(net, kernel, gaussian_logp, storage)
    *stored, old_logp, _ = (torch.cat(parts) for parts in zip(*kept, strict=True))
    step, next_x = replay(net, kernel, *stored)
    ratio = (gaussian_logp(next_x, step) - old_logp).exp()
    assert (ratio - 1).abs().max() <= 1e-6


@EACH_NOISY
def test_a_log_probability_of_what_was_not_stored_has_another_ratio(name):
    """Why `next_state` rounds: old_logp of the float32 state, ratio at the stored bfloat16 one."""
    net, kernel = Net(), NOISY[name]
    x = normal(key(0, "start"), (ROWS, SIZE))
    sigma, after = torch.full((ROWS,), 0.6), torch.full((ROWS,), 0.4)
    step = kernel(x, net(x, sigma), sigma, after)
    exact = next_state(step, normal(key(0, "step"), (ROWS, SIZE)))
    gap = gaussian_logp(exact.bfloat16(), step) - gaussian_logp(exact, step)
    assert gap.abs().max() > 1e-4


@EACH_NOISY
def test_the_kl_is_zero_before_an_update_and_pulls_after_it(name):
    net, ref, kernel = Net(), Net(), NOISY[name]
    kept = rollout(net, kernel, gaussian_logp, torch.float32)
    *stored, old_logp, old_mean = kept[2]

    def gradient_and_kl(coef):
        net.zero_grad()
        step, next_x = replay(net, kernel, *stored)
        kl = gaussian_kl(step, replay(ref, kernel, *stored)[0].mean.detach())
        policy = -(gaussian_logp(next_x, step) - old_logp).exp() * torch.linspace(-1, 1, ROWS)
        (policy + coef * kl).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
        return gradient, kl.detach(), gaussian_kl(step, old_mean).detach()

    without, kl, to_old = gradient_and_kl(0.0)
    assert (kl == 0).all() and (to_old == 0).all()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    without, kl, to_old = gradient_and_kl(0.0)
    assert (kl > 0).all() and (to_old > 0).all()
    pull = gradient_and_kl(10.0)[0] - without
    assert pull.norm() > 0.01 * without.norm()
    assert_close(gradient_and_kl(20.0)[0] - without, 2 * pull, rtol=1e-3, atol=1e-6)


def test_rounding_of_float32_stays_below_the_smallest_published_clip():
    """GRPO-Guard clips at 2e-6: a log-ratio, a difference of numbers near 1, must be more exact."""
    worst = {}
    for name, kernel in NOISY.items():
        x, velocity, shift = normal(key(0, name), (3, 256, 768)).double()
        sigma, after = torch.full((256,), 0.75), torch.full((256,), 2 / 3)
        both = []
        for dtype in (torch.float64, torch.float32):
            inputs = [value.to(dtype) for value in (x, velocity, sigma, after)]
            old = kernel(*inputs)
            live = kernel(inputs[0], inputs[1] + (1e-3 * shift).to(dtype), *inputs[2:])
            next_x = next_state(old, torch.cos(9 * inputs[0]), storage=torch.float32)
            both.append(gaussian_logp(next_x, live) - gaussian_logp(next_x, old))
        worst[name] = (both[1].double() - both[0]).abs().max().item()
    assert max(worst.values()) < 1e-6, worst
