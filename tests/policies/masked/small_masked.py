"""Small masked-diffusion policies that are quick to build."""

from functools import partial

import torch
from policies.small_language import questions

from tandem.policies.masked.policy import MaskedPolicy
from tandem.policies.masked.records import MaskedSampling
from tandem.policies.masked.states import path
from tandem.policies.masked.tiny_masked import tiny_masked
from tandem.policies.request import Request
from tandem.policies.weights import Precision

NOTHING = frozenset()
POSITIONS = 6


def sampling(**numbers):
    return MaskedSampling(**{"max_new_tokens": POSITIONS, **numbers})


def small_masked(likelihood=path, needs=NOTHING, epochs=2, mixed=False, **options):
    """A policy of two narrow layers; the weights are larger than initial ones, so that context
    matters."""
    own = options.pop("sampling", sampling())
    build = partial(tiny_masked, seed=0, hidden_size=32, num_layers=2, head_dim=8)
    policy = MaskedPolicy(**{"build": build, **options})
    asked = {"needs": needs, "likelihood": likelihood, "epochs": epochs}
    policy.load(Request(sampling=own, precision=Precision(mixed=mixed), **asked))
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.mul_(4 if parameter.dim() == 2 else 1)
    return policy


def make_rollout(policy, size=3, **numbers):
    """Two prompts of different lengths, each answered several times."""
    own = sampling(**numbers) if numbers else None
    return policy.sample(questions(("dbca", "fa")), size, key=7, slots=[0, 1], sampling=own)
