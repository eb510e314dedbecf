"""Advantages from a teacher, against their reference values and the law behind them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.advantages.compose import Combined, Share
from tandem.advantages.group import batch_relative
from tandem.advantages.teacher import from_teacher, g_opd, log_ratio, minillm_long, none
from tandem.types import Rollout, Scores

close = partial(assert_close, atol=1e-6, rtol=0)


def score_rows(rows, total=None):
    total = torch.zeros(rows, dtype=torch.float64) if total is None else total
    return Scores(total=total, parts={}, scored=torch.ones(rows, dtype=torch.bool))


def rollout_of(mask, **others):
    mask = mask.bool()
    known = {name: x.masked_fill(~mask, torch.nan) for name, x in others.items()}
    rows = len(mask)
    return Rollout(
        sample=None, outputs=("",) * rows, prompts=(), mask=mask, group=torch.arange(rows),
        length=mask.sum(1), truncated=torch.zeros(rows, dtype=torch.bool), **known,
    )  # fmt: skip


@pytest.fixture
def case(axis):
    """Two rows of the reference, with NaN on the untrained step."""
    read = partial(axis)
    return rollout_of(
        read("opd_sampled/mask"),
        teacher_logp=read("opd_sampled/teacher_logp"),
        old_logp=read("opd_sampled/student_logp_as_sampled"),
        ref_logp=read("opd_sampled/ref_logp"),
    )


def test_the_log_ratio_to_the_teacher_is_the_reference_one(axis, case):
    coef = axis("opd_sampled/coef").item()
    got = from_teacher(score_rows(2), case, coef=coef)
    close(got, axis("opd_sampled/advantages"))
    close(log_ratio(case), -axis("opd_sampled/reverse_kl_estimate"))
    close((-log_ratio(case)).sum() / case.mask.sum(), axis("opd_sampled/mean_kl"))
    discounted = from_teacher(score_rows(2), case, gamma=axis("opd_sampled/discount").item())
    close(discounted, axis("opd_sampled/discounted"))
    close(from_teacher(score_rows(2), case, coef=3.0), 3 * got)


def test_a_student_is_led_beyond_its_teacher_as_in_the_reference(axis, case):
    scale = axis("opd_sampled/scale").item()
    close(g_opd(score_rows(2), case, scale=scale), axis("opd_sampled/g_opd"))
    assert torch.equal(g_opd(score_rows(2), case, scale=1.0), from_teacher(score_rows(2), case))


def test_a_task_adds_its_advantage_to_every_step(axis, case):
    """Here its mean over samples is 0; the teacher's part is not normalised."""
    task = axis("opd_sampled/task_advantage")
    shares = {"task": Share(of=batch_relative), "teacher": Share(of=from_teacher)}
    got = Combined(shares)(score_rows(2, task), case)
    want = axis("opd_sampled/with_task") - task.mean() * case.mask
    close(got, want)


def test_the_long_part_of_minillm_is_the_mean_of_what_follows(axis):
    steps = axis("minillm_long/advantages_of_one_step")
    case = rollout_of(
        axis("minillm_long/mask"), teacher_logp=steps, old_logp=torch.zeros_like(steps)
    )
    got = minillm_long(score_rows(2), case, gamma=axis("minillm_long/gamma").item())
    close(got, axis("minillm_long/normalised"))


def test_summed_over_all_tokens_it_gives_the_gradient_of_the_reverse_kl(axis):
    """sum_y s(y) A(y) grad log s(y) = -grad KL(student | teacher) at one state."""
    logits = axis("opd_law/student_logits").requires_grad_()
    student = logits.log_softmax(-1)
    teacher = axis("opd_law/teacher_logits").log_softmax(-1)
    tokens = student.shape[1]
    rows = rollout_of(
        torch.ones(tokens, 1), old_logp=student.detach().T, teacher_logp=teacher.T.clone()
    )
    advantages = from_teacher(score_rows(tokens), rows)[:, 0]
    (got,) = torch.autograd.grad(
        (student[0].detach().exp() * advantages * student[0]).sum(), logits
    )
    close(got, axis("opd_law/expected_policy_gradient"))
    logits = logits.detach().requires_grad_()
    kl = torch.nn.functional.kl_div(
        teacher, logits.log_softmax(-1), log_target=True, reduction="sum"
    )
    (minus,) = torch.autograd.grad(-kl, logits)
    close(minus, axis("opd_law/minus_grad_reverse_kl"))
    assert axis("opd_law/largest_difference") < 1e-15
    assert_close(got, minus, atol=1e-15, rtol=0)


@pytest.mark.parametrize("advantage", [from_teacher, g_opd, minillm_long])
def test_a_teacher_who_agrees_gives_0_exactly(case, advantage):
    agreeing = replace(case, teacher_logp=case.old_logp, ref_logp=case.old_logp)
    assert not advantage(score_rows(2), agreeing).any()


@pytest.mark.parametrize("advantage", [from_teacher, g_opd, minillm_long])
def test_a_row_that_nobody_judges_has_no_advantage(case, advantage):
    whole = advantage(score_rows(2), case)
    part = advantage(score_rows(2), replace(case, taught=torch.tensor([True, False])))
    assert torch.equal(part[0], whole[0]) and not part[1].any() and whole[1].any()


def test_a_loss_that_reads_no_advantage_is_given_none(case):
    assert none(score_rows(2, torch.ones(2)), case).tolist() == [[0.0] * 3] * 2
