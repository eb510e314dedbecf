"""What components may return: a plugin's and a built-in's go through the same code."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from loop import PLAN, Loop
from records import GRPO

from tandem.advantages.group import batch_relative
from tandem.contracts import declare
from tandem.contracts.outputs import WrongOutput
from tandem.losses import importance
from tandem.losses.policy import reinforce
from tandem.losses.reduction import sequence_mean
from tandem.losses.sequence import gspo
from tandem.stop import Stop

WHOLE = replace(PLAN, num_minibatches=1, epochs=1)


def plugged(folder, **parts):
    return Loop(algorithm=replace(GRPO, **parts), plan=WHOLE, folder=folder)


def mean_loss(batch):
    return reinforce(batch).mean()


def per_row(batch):
    return reinforce(batch).sum(1)


def per_sample(batch):
    return reinforce(batch).sum(1, keepdim=True)


def detached(batch):
    return reinforce(batch).detach()


def narrow(batch):
    return reinforce(batch).bfloat16()


LOSSES = {
    mean_loss: r"^loss mean_loss returned one number.* leave out \.mean\(\).* here \[24, 5\]",
    per_row: r"^loss per_row returned \[B\], here \[24\]; return x\[:, None\] \* batch\.mask",
    per_sample: r"^loss per_sample returned \[B, 1\].* declare per='sample'",
    detached: r"^loss detached has no gradient; leave out \.detach\(\)",
    narrow: r"^loss narrow returned torch\.bfloat16; return float32 or float64",
    lambda batch: 1.0: r"^loss <lambda> returned float; return a tensor \[B, T\]",
}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_loss_of_another_shape_or_without_a_gradient_is_one_line(tmp_path, loss):
    with pytest.raises(WrongOutput, match=LOSSES[loss]) as seen:
        plugged(tmp_path, loss=loss).go()
    assert "\n" not in str(seen.value)
    assert isinstance(seen.value, Stop) and isinstance(seen.value, ValueError)


def test_a_loss_that_declares_one_number_for_a_sample_may_return_it(tmp_path):
    one = declare(per="sample")(per_sample)
    other = plugged(tmp_path, loss=lambda batch: one(batch) * batch.mask, weights=sequence_mean)
    mine = plugged(tmp_path, loss=one, weights=sequence_mean)
    assert torch.equal(mine.go().gradients[0], other.go().gradients[0])


WRONG = {
    "advantage": (
        lambda scores, rollout: scores.total - scores.total.mean(),
        r"^advantage <lambda> returned \[B\]",
    ),
    "weights": (lambda mask: torch.tensor(1 / 24), r"^weights <lambda> returned one number"),
    "importance_sampling": (
        declare(reads={"old_logp", "behaviour_logp"})(lambda batch: batch.logp.exp() * batch.mask),
        r"^correction <lambda> has a gradient, which it must not have",
    ),
    "old_logprobs": (lambda batch: batch.logp[0].detach(), r"^old policy <lambda> returned \[5\]"),
}


@pytest.mark.parametrize("part", WRONG)
def test_every_other_part_is_checked_by_the_same_sentences(tmp_path, part):
    function, says = WRONG[part]
    with pytest.raises(WrongOutput, match=says):
        plugged(tmp_path, **{part: function}).go()


def test_an_advantage_that_is_not_finite_is_named_where_it_is_made(tmp_path):
    def broken(scores, rollout):
        return batch_relative(scores, rollout) / 0

    with pytest.raises(WrongOutput, match=r"^advantage broken returned \d+ values .* not finite"):
        plugged(tmp_path, advantage=broken).go()


@pytest.mark.parametrize("loss", [reinforce, gspo, partial(gspo, clip_low=0.1, clip_high=0.1)])
def test_what_is_right_passes_and_a_correction_may_be_of_whole_samples(tmp_path, loss):
    def by_sample(batch):
        return importance.geometric_ratio(batch)

    own = declare(reads={"old_logp", "behaviour_logp"})(by_sample)
    report = plugged(tmp_path, loss=loss, importance_sampling=own).go().report
    assert report["optim/grad_norm"] > 0
