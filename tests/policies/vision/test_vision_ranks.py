"""Two ranks that train a vision tower, one of which has no image."""

import torch
from policies.vision.small_vision import NOTHING, answer, small_vision
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from two_ranks import on_both

from tandem.types import take

EVERY = ["language", "projector", "vision"]
SHOWN, BLIND = [0, 1], [2, 3]  # rows of the prompts with a picture, and without


class Loss(nn.Module):
    def __init__(self, policy):
        super().__init__()
        self.network, self.policy = policy.network, [policy]

    def forward(self, rollout):
        return self.policy[0].evidence(rollout, NOTHING).logp.sum()


def gradients(policy):
    return {n: p.grad.clone() for n, p in policy.trainable().items() if p.requires_grad}


def of_a_rank():
    """The gradients after two steps: the second would wait for an unfinished first."""
    policy = small_vision(target_components=EVERY)
    rollout = answer(policy)
    loss = DistributedDataParallel(Loss(policy))
    own = take(rollout, torch.tensor((SHOWN, BLIND)[distributed.get_rank()]))
    for _ in range(2):
        policy.zero_grad()
        loss(own).backward()
    return gradients(policy)


def test_a_rank_without_pictures_is_not_waited_for_and_gradients_are_those_of_all_rows():
    alone = small_vision(target_components=EVERY)
    rollout = take(answer(alone), torch.tensor([*SHOWN, *BLIND]))
    (alone.evidence(rollout, NOTHING).logp.sum() / 2).backward()
    want = gradients(alone)
    for got in on_both(of_a_rank):
        assert_close(got, want, atol=1e-4, rtol=1e-3)
