"""Small flow policies that are quick to build, and prompts for them."""

from dataclasses import fields
from functools import partial

import torch
from at_once import AtOnce

from tandem.dynamics.kernels import cps, dance_sde, flow_sde
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.policies.flow.policy import SAME, FlowPolicy
from tandem.policies.flow.records import FlowSampling
from tandem.policies.request import Request
from tandem.types import Prompt, Scores

TEXTS = ("red circle", "green square", "blue triangle", "yellow circle")
KERNELS = {
    "flow_sde": partial(flow_sde, noise_level=0.7),
    "dance_sde": partial(dance_sde, noise_level=0.3),
    "cps": partial(cps, noise_level=0.6),
}
NOTHING = frozenset()
KEY = 11
# Passes with different numbers of rows differ by rounding on some CPUs: nats per dimension.
SAME_LOGP = {"atol": SAME, "rtol": 0}


def make_prompts(texts=TEXTS, **brought):
    return [
        Prompt(id=i, source="shapes", text=text, fields=brought) for i, text in enumerate(texts)
    ]


class Brightness(AtOnce):
    """Brightness of an image, from 0 to 1."""

    def __call__(self, outputs, prompts):
        total = torch.stack(list(outputs)).double().mean((1, 2, 3)) / 255
        return Scores(total=total, parts={"bright": total}, scored=torch.ones(len(total)).bool())


class Stream(torch.nn.Module):
    """The same few prompts in every iteration."""

    def draw(self, iteration, count, *, round=0):
        return make_prompts()[:count]

    def observe(self, sources, success):
        pass


def small(needs=NOTHING, *, steps=5, sampling=None, **options):
    """A policy of one layer."""
    own = {"kernel": KERNELS["flow_sde"], "max_rows": 16} | (sampling or {})
    options.setdefault("adapter", TinyFlow(seed=0, num_layers=1))
    request = {
        field.name: options.pop(field.name) for field in fields(Request) if field.name in options
    }
    policy = FlowPolicy(**options)
    policy.load(Request(sampling=FlowSampling(steps=steps, **own), needs=needs, **request))
    return policy


def sample_rows(policy, group_size=4, texts=TEXTS, **options):
    prompts = make_prompts(texts)
    options.setdefault("slots", range(len(prompts)))
    return policy.sample(prompts, group_size, key=KEY, **options)


def gap_to_sampler(policy, rollout):
    """Largest |log ratio| of a rollout, nats per latent dimension."""
    with torch.no_grad():
        return (policy.evidence(rollout, NOTHING).logp - rollout.behaviour_logp).abs().max()


def step_on(policy, loss, lr=1e-3):
    """One step of plain gradient descent; returns the gradients."""
    loss.backward()
    assert all(p.grad is not None for p in policy.trainable().values()), "ranks wait for each other"
    gradients = {name: p.grad.clone() for name, p in policy.trainable().items()}
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter -= lr * parameter.grad
            parameter.grad = None
    return gradients


def gradients_of(policy, loss):
    got = torch.autograd.grad(loss, list(policy.trainable().values()))
    return dict(zip(policy.trainable(), got, strict=True))
