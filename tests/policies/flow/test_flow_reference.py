"""A renewed reference: an earlier policy, stored as a copy of the trained weights alone."""

import pytest
import torch
from small_flow import sample_rows, small, step_on
from torch.testing import assert_close

from tandem import rng
from tandem.policies.lora import Lora
from tandem.policies.request import Request

KL = frozenset({"kl_to_ref", "transition"})
RENEWED = KL | {"new_reference"}
KINDS = {"whole": {}, "adapters": {"lora": Lora(r=4, alpha=8, target_modules="attention")}}
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def distance(policy, rollout):
    with torch.no_grad():
        return policy.evidence(rollout, KL).transition.kl_to_ref.mean().item()


@torch.no_grad()
def move(policy, seed):
    """Change all weights; the second factor of new adapters is 0."""
    for number, parameter in enumerate(policy.trainable().values()):
        parameter += 0.05 * rng.normal(rng.key(seed, number), tuple(parameter.shape))
    policy.notify("update")


@EACH_KIND
def test_before_it_is_renewed_it_is_the_frozen_one(kind):
    one, other = small(KL, **kind), small(RENEWED, **kind)
    rollout = sample_rows(one)
    for policy in (one, other):
        move(policy, 1)
    assert distance(one, rollout) > 1e-8
    assert_close(distance(other, rollout), distance(one, rollout), rtol=1e-3, atol=1e-10)
    assert other.model.frozen is None, "a copy of what is trained does"


@EACH_KIND
def test_after_that_it_is_the_policy_as_it_was_then(kind):
    policy = small(RENEWED, **kind)
    rollout = sample_rows(policy)
    move(policy, 1)
    policy.renew_reference()
    assert distance(policy, rollout) < 1e-9
    move(policy, 2)
    assert distance(policy, rollout) > 1e-8


def test_a_checkpoint_has_it():
    policy, later = small(RENEWED), small(RENEWED)
    rollout = sample_rows(policy)
    move(policy, 1)
    policy.renew_reference()
    move(policy, 2)
    for name, parameter in later.trainable().items():
        parameter.data.copy_(policy.trainable()[name].data)
    later.notify("update")
    before = distance(later, rollout)
    later.load_state(policy.state())
    assert distance(later, rollout) == distance(policy, rollout) < before


def test_the_gradient_of_the_penalty_is_that_of_a_frozen_copy():
    one, other = small(KL), small(RENEWED)
    rollout = sample_rows(one)
    for policy in (one, other):
        move(policy, 1)
    want, got = (
        step_on(policy, policy.evidence(rollout, KL).transition.kl_to_ref.mean())
        for policy in (one, other)
    )
    for name, gradient in want.items():
        assert_close(got[name], gradient, rtol=1e-4, atol=1e-9)


def test_a_policy_of_tokens_does_not_offer_it():
    from policies.small_language import small as language

    policy = language()
    assert "new_reference" not in policy.describe(Request(sampling=policy.sampling)).provides
    with pytest.raises(NotImplementedError, match="cannot be renewed"):
        policy.renew_reference()
