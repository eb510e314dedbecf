"""A loss that averages itself gives the same value and gradient, or is refused."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from losses.every_loss import random_batch
from torch.testing import assert_close

from tandem.contracts import declare, facts_of
from tandem.losses import reduction
from tandem.losses.adapted import from_scalar, refuse_part
from tandem.losses.policy import ppo
from tandem.metrics import merge_metrics, own_metrics, reduce_metrics
from tandem.types import take


def average(old_logp, logp, advantages, mask, *, clip=0.2, **more):
    """PPO averaged over tokens, as other libraries write it."""
    ratio = (logp - old_logp).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    far = ((ratio - 1).abs() > clip) & mask
    metrics = {"far": far.sum() / mask.sum(), "pg/count": len(mask), **more}
    return (loss * mask).sum() / mask.sum(), metrics


@pytest.mark.parametrize("weigh", [reduction.token_mean, reduction.sequence_mean])
def test_the_weighted_sum_is_the_scalar_and_so_is_its_gradient(weigh):
    batch = random_batch()
    weight = weigh(batch.mask).double()
    mine = (from_scalar(average)(batch, clip=0.1) * weight).sum()
    inputs = (batch.old_logp, batch.logp, batch.advantages, batch.mask)
    theirs, _ = average(*inputs, clip=0.1)
    assert_close(mine, theirs)
    got, want = (torch.autograd.grad(loss, batch.logp)[0] for loss in (mine, theirs))
    assert_close(got, want)


def test_it_has_the_gradient_of_the_same_loss_by_steps():
    batch = random_batch()
    weight = reduction.token_mean(batch.mask).double()
    losses = [(f(batch) * weight).sum() for f in (from_scalar(average), ppo)]
    assert_close(*(torch.autograd.grad(loss, batch.logp)[0] for loss in losses))


def test_it_reads_old_log_probabilities_and_no_row_may_be_skipped():
    def more(old_logp, logp, advantages, mask):
        return logp.mean(), {}

    loss = from_scalar(declare(reads={"ref_logp"}, zero_at_zero_advantage=True)(more))
    assert facts_of(loss).reads == {"ref_logp", "old_logp"}
    facts = facts_of(partial(loss))
    assert facts.averages and not facts.zero_at_zero_advantage and not facts_of(ppo).averages
    assert loss.__wrapped__ is more


def test_its_metrics_are_means_over_updates_under_its_numbers():
    loss = partial(from_scalar(average), clip=1e9, spread=2.0)
    batch = random_batch()
    once = own_metrics(loss, batch)
    assert reduce_metrics(once) == {"actor/far": 0.0, "pg/count": 40.0, "actor/spread": 2.0}
    with_default = reduce_metrics(own_metrics(from_scalar(average), batch))
    ratio = (batch.logp - batch.old_logp).exp()
    assert with_default["actor/far"] == pytest.approx(
        ((ratio - 1).abs()[batch.mask] > 0.2).double().mean().item()
    )
    merge_metrics(once, own_metrics(loss, take(batch, torch.arange(20))))
    assert reduce_metrics(once)["pg/count"] == 30.0


def test_no_trained_step_is_no_loss_and_no_metric():
    batch = random_batch()
    empty = replace(batch, mask=torch.zeros_like(batch.mask))
    assert (from_scalar(average)(empty) == 0).all()
    assert own_metrics(from_scalar(average), empty) == {}


def test_a_part_of_an_update_is_refused_with_the_form_to_write():
    loss, weight = (
        partial(from_scalar(average), clip=0.1),
        reduction.token_mean(random_batch().mask),
    )
    refuse_part(loss, weight)
    refuse_part(loss, 0 * weight)  # an idle row
    refuse_part(ppo, weight[:20])
    with pytest.raises(ValueError, match=r"average averages over an update itself") as refused:
        refuse_part(loss, weight[:20])
    said = str(refused.value)
    assert "`def average(batch, *, numbers) -> Tensor`, the loss of each step [B, T]" in said
    assert "max_tokens_per_microbatch" in said and "\n" not in said
    with pytest.raises(ValueError, match="of its weight"):
        refuse_part(loss, reduction.sequence_sum(random_batch().mask))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (torch.zeros(()), r"a tensor \[\]$"),
        ((torch.zeros(40, 6), {}), r"\(a tensor \[40, 6\], dict\)$"),
        ((0.0, {}), r"\(float, dict\)$"),
        ((torch.zeros(()), {}, 3), r"\(a tensor \[\], dict, int\)$"),
    ],
)
def test_another_answer_is_refused(answer, shown):
    def wrong(old_logp, logp, advantages, mask):
        return answer

    with pytest.raises(ValueError, match=rf"^wrong\(old_logp, .*but it gave {shown}"):
        from_scalar(wrong)(random_batch())


def test_a_metric_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"average: its metric bad is a tensor \[2\]"):
        own_metrics(partial(from_scalar(average), bad=torch.zeros(2)), random_batch())
