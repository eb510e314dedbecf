"""Small policies that are quick to make, and some text for them."""

from functools import partial

import torch

from tandem.policies.language import LanguagePolicy, Sampling
from tandem.policies.tiny_lm import tiny_lm
from tandem.types import Prompt

WORDS = ("dbca", "fa", "jihgfedcba", "ccab", "gb", "ehdac", "iab", "bjfd")
NOTHING = frozenset()


def questions(words=WORDS):
    """Letters to sort, of 2 to 10 characters: left padding is exercised."""
    return [
        Prompt(id=i, source="sort", text=f"{word}>", answer="".join(sorted(word)))
        for i, word in enumerate(words)
    ]


def small(needs=NOTHING, *, sampling=None, **options):
    """A policy of one narrow layer."""
    options.setdefault("build", partial(tiny_lm, seed=0, hidden_size=32, num_layers=2, head_dim=8))
    sampling = sampling or Sampling(max_new_tokens=8)
    policy = LanguagePolicy(sampling=sampling, **options)
    policy.load(needs)
    return policy


def trained(policy, steps=6):
    """A few steps on demonstrations: at random weights attention hardly matters."""
    optimizer = torch.optim.Adam(policy.trainable().values(), lr=1e-2)
    rollout = policy.encode(questions(), slots=range(len(WORDS)))
    for _ in range(steps):
        optimizer.zero_grad()
        evidence = policy.evidence(rollout, NOTHING)
        (-evidence.logp.sum() / rollout.mask.sum()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return policy
