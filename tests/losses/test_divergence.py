"""Divergences from a teacher, against their reference values and laws."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from test_far_samples import batch_of, check
from torch.testing import assert_close

from tandem.losses.divergence import StateDivergence, forward_kl, jsd, reverse_kl
from tandem.losses.policy import ppo, reinforce
from tandem.losses.teacher import WithDivergence, divergence, sampled_divergence

BY_BETA = {
    "0": forward_kl, "0.1": partial(jsd, beta=0.1), "0.5": jsd, "0.9": partial(jsd, beta=0.9),
    "1": reverse_kl,
}  # fmt: skip
ALL = {name: of for name, of in BY_BETA.items() if name in ("0", "0.5", "1")}
every = pytest.mark.parametrize("of", ALL.values(), ids=ALL)


def make_logits(axis):
    """The student's logits, with gradient, and the log-probabilities of both."""
    logits = axis("gkd_jsd/student_logits").requires_grad_()
    return logits, logits.log_softmax(-1), axis("gkd_jsd/teacher_logits").log_softmax(-1)


def agree(axis, case, distance):
    logits, student, teacher = make_logits(axis)
    value = distance(student, teacher)
    check(value, logits, axis(f"{case}/per_state"), axis(f"{case}/grad_student_logits"))


@pytest.mark.parametrize("beta", BY_BETA)
def test_a_divergence_is_the_reference_one(axis, beta):
    agree(axis, f"gkd_jsd_beta_{beta}", StateDivergence(of=BY_BETA[beta]))


@pytest.mark.parametrize("beta", ALL)
@pytest.mark.parametrize(("kept", "tail"), [("tail", True), ("renormalised", False)])
def test_over_the_likeliest_tokens_it_is_the_reference_one(axis, beta, kept, tail):
    distance = StateDivergence(of=BY_BETA[beta], top_k=3, tail=tail, support="teacher")
    agree(axis, f"gkd_jsd_beta_{beta}_top3_{kept}", distance)


@every
@pytest.mark.parametrize("top_k", [None, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_0_to_the_last_bit_where_both_agree(of, top_k, dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(50, 33, generator=generator)).to(dtype).requires_grad_()
    student = logits.log_softmax(-1)
    value = StateDivergence(of=of, top_k=top_k)(student, student.detach())
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert not value.any() and not gradient.any()


@every
def test_all_tokens_are_as_many_as_there_are_and_all_but_one_with_a_tail(of):
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, 20, 7, generator=generator, dtype=torch.float64)
    logits, teacher = draw().requires_grad_(), draw().log_softmax(-1)

    def both(top_k):
        value = StateDivergence(of=of, top_k=top_k)(logits.log_softmax(-1), teacher)
        return value, torch.autograd.grad(value.sum(), logits)[0]

    for top_k in (6, 7, 100):
        for got, want in zip(both(top_k), both(None), strict=True):
            assert_close(got, want, atol=1e-12, rtol=0)


@every
def test_the_gradient_is_that_of_autograd(of):
    """Of the plain sum, as in papers."""
    generator = torch.Generator().manual_seed(2)
    draw = partial(torch.randn, 20, 7, generator=generator, dtype=torch.float64)
    logits, t = draw().requires_grad_(), draw().softmax(-1)
    s = logits.softmax(-1)
    m = {forward_kl: s, reverse_kl: t}.get(of, (s + t) / 2)
    share = {forward_kl: 1.0, reverse_kl: 0.0}.get(of, 0.5)
    plain = (share * t * (t / m).log() + (1 - share) * s * (s / m).log()).sum(-1)
    got = of(s.log(), t.log())
    assert_close(got, plain)
    for one, other in zip(*(torch.autograd.grad(x.sum(), logits, retain_graph=True)
                            for x in (got, plain)), strict=True):  # fmt: skip
        assert_close(one, other, atol=1e-12, rtol=0)


@every
def test_tokens_that_one_side_never_says_leave_no_nan(of):
    logits = torch.tensor([[90.0, -90.0, 0.0]], requires_grad=True)
    value = of(logits.log_softmax(-1), torch.tensor([[-90.0, 90.0, 0.0]]).log_softmax(-1))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.isfinite().all() and gradient.isfinite().all() and value > 0.5


def test_the_likeliest_tokens_are_those_of_the_side_that_weighs_them():
    student = torch.tensor([[0.7, 0.2, 0.1]]).log()
    teacher = torch.tensor([[0.1, 0.2, 0.7]]).log()
    of_teacher = StateDivergence(of=forward_kl, top_k=1)
    of_student = StateDivergence(of=reverse_kl, top_k=1)
    assert_close(of_teacher.narrow(student, teacher)[0].exp(), torch.tensor([[0.1, 0.9]]))
    assert_close(of_student.narrow(student, teacher)[1].exp(), torch.tensor([[0.1, 0.9]]))
    chosen = StateDivergence(of=reverse_kl, top_k=1, support="teacher")
    assert_close(chosen.narrow(student, teacher)[1].exp(), torch.tensor([[0.7, 0.3]]))


# Losses.


def test_the_sampled_divergence_is_the_reference_one(axis):
    read = {
        name: axis(f"sdpo_sampled/{theirs}")
        for name, theirs in {
            "logp": "student_logp", "old_logp": "old_logp", "teacher_logp": "teacher_logp",
            "mask": "mask",
        }.items()
    }  # fmt: skip
    logp, batch = batch_of(advantages=torch.zeros_like(read["logp"]), **read)
    most = axis("sdpo_sampled/is_clip").item()
    loss = sampled_divergence(batch, ratio_max=most)
    check(loss, logp, axis("sdpo_sampled/loss"), axis("sdpo_sampled/grad_student_logp"))


def taught(**changes):
    """Four rows of one step with ratios 0.5, 1, 3 and 1; the last has no divergence."""
    old = torch.tensor([-2.0, -1.5, -3.0, -1.0], dtype=torch.float64)
    moved = torch.tensor([0.5, 1.0, 3.0, 1.0], dtype=torch.float64).log()
    distance = torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=torch.float64)
    known = {"old_logp": old, "teacher_logp": old - distance, "divergence": distance} | changes
    return batch_of(old + moved, torch.ones_like(old), **known)[1]


def test_the_ratio_of_older_samples_is_capped():
    assert_close(divergence(taught())[:, 0].tolist(), [0.5, 2.0, 8.0, 0.0])
    assert_close(divergence(taught(), ratio_max=None)[:, 0].tolist(), [1.0, 2.0, 4.0, 0.0])


def test_on_fresh_samples_the_sampled_divergence_is_reinforce_with_the_log_ratio():
    batch = taught()
    fresh = taught(old_logp=batch.logp.detach()[:, 0])
    advantages = (fresh.teacher_logp - fresh.logp).detach()
    want = reinforce(replace(fresh, advantages=advantages))
    assert_close(sampled_divergence(fresh), want)


def test_a_divergence_stands_beside_a_loss_of_advantages():
    batch = taught()
    both = WithDivergence(loss=ppo, coef=0.5)
    assert_close(both(batch), ppo(batch) + 0.5 * batch.divergence)
