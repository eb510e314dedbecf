"""Small policies with vision that are quick to build, and images for them."""

from functools import partial

import torch

from tandem.data.images import show
from tandem.policies.language.records import Sampling
from tandem.policies.request import Request
from tandem.policies.vision.policy import VisionLanguagePolicy
from tandem.policies.vision.tiny_vlm import tiny_vlm
from tandem.types import IMAGE, Prompt

NOTHING = frozenset()


def picture(side=16, shift=0, width=None):
    """An image whose pixels all differ; every shift gives another one."""
    size = (side, side if width is None else width, 3)
    return show(torch.rand(size, generator=torch.Generator().manual_seed(shift)).mul(255).byte())


def make_prompt(number, text, *images, answer="red"):
    return Prompt(id=number, source="s", text=text, images=images, answer=answer)


def questions():
    """Of different lengths: one image, none, and two of different sizes."""
    return [
        make_prompt(0, f"{IMAGE} colour ?", picture(16)),
        make_prompt(1, "how many red circle ?"),
        make_prompt(2, f"{IMAGE} what {IMAGE} shape ?", picture(24, 1), picture(16, 2)),
    ]


def small_vision(needs=NOTHING, *, sampling=None, **options):
    """A policy of one narrow layer each; the weights are larger than initial ones, so that context
    matters."""
    own = partial(tiny_vlm, seed=0, num_layers=2, tower_layers=1)
    policy = VisionLanguagePolicy(**{"build": own, "packing": True, **options})
    policy.load(Request(sampling=sampling or Sampling(max_new_tokens=4), needs=needs))
    with torch.no_grad():
        for weight in policy.network.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return policy


def answer(policy, size=2):
    return policy.sample(questions(), size, key=3, slots=[0, 1, 2])
