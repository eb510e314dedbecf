"""Distillation in the reference: the student has the live velocity, the teacher v_ref."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from errors import mean_loss, random_errors
from flows import KERNELS, PRECISION, close, reference_pair, reference_step
from torch.testing import assert_close

from tandem.contracts.wrong_output import WrongOutput
from tandem.losses.distillation import distillation, velocity, x0, xt
from tandem.metrics import own_metrics, reduce_metrics
from tandem.types import DecoupledBatch

TARGETS = {"xt": xt, "v": velocity, "x0": x0}
DTYPES = pytest.mark.parametrize("dtype", PRECISION, ids=str)


def taught(flow, dynamics, dtype=torch.float64):
    """The live velocity, and its gap to the teacher's on the four steps from 0.6 to 0.4."""
    own, step, _ = reference_pair(flow, dynamics, dtype)
    ones = torch.ones(4, 1, dtype=dtype)
    return own, DecoupledBatch(
        error=(own - flow("fixture/v_ref", dtype))[:, None],
        sigma=0.6 * ones,
        advantages=0 * ones,
        mask=ones.bool(),
        group=torch.arange(4),
        velocity_gain=step.velocity_gain[:, None].expand(4, 1),
        std=step.std[:, None].expand(4, 1),
    )


CASES = [(target, "ODE") for target in TARGETS] + [
    ("xt", dynamics) for dynamics in KERNELS if dynamics != "ODE"
]


@DTYPES
@pytest.mark.parametrize(("target", "dynamics"), CASES)
def test_the_loss_is_the_reference_one(flow, target, dynamics, dtype):
    _, batch = taught(flow, dynamics, dtype)
    loss = partial(distillation, target=TARGETS[target])
    want = flow(f"opd.{target}.{dynamics}/loss")
    assert_close(mean_loss(loss, batch).detach(), want, **close(dtype))
    if dynamics == "ODE":
        by_size = mean_loss(partial(loss, self_normalize=True), batch).detach()
        assert_close(by_size, flow(f"opd.{target}_norm.ODE/loss"), **close(dtype))
    distance = reduce_metrics(own_metrics(loss, batch))["actor/teacher_distance"]
    assert distance == pytest.approx(flow("opd.v.ODE/loss").item(), abs=PRECISION[dtype])


@pytest.mark.parametrize("dynamics", KERNELS)
def test_the_target_xt_is_the_distance_of_the_means_of_a_step(flow, dynamics):
    """Compared with the steps themselves, whose means the velocity gain replaces."""
    own, batch = taught(flow, dynamics)
    step, other = (reference_step(KERNELS[dynamics], flow, v) for v in (own, flow("fixture/v_ref")))
    want = (step.mean - other.mean).square().mean(1)
    if dynamics != "ODE":
        want = want / step.std.square()
    got = distillation(batch, target=xt)[:, 0]
    assert_close(got, want)
    pair = (torch.autograd.grad(x.sum(), own, retain_graph=True)[0] for x in (got, want))
    assert_close(*pair)


def test_a_normalised_loss_is_a_distance():
    """Three times the error costs three times as much, and the gradient does not grow with it."""
    batch = random_errors()
    loss = partial(distillation, target=velocity, self_normalize=True)
    near, far = loss(batch), loss(replace(batch, error=3 * batch.error))
    assert_close(far, 3 * near, atol=1e-6, rtol=1e-6)
    slopes = [torch.autograd.grad(x.sum(), batch.error)[0] for x in (near, far / 3)]
    assert_close(*slopes, atol=1e-6, rtol=1e-6)


def test_a_teacher_that_is_met_leaves_no_gradient():
    batch = random_errors()
    met = replace(batch, error=torch.zeros_like(batch.error).requires_grad_())
    for target in TARGETS.values():
        for normalised in (False, True):
            loss = distillation(met, target=target, self_normalize=normalised)
            (gradient,) = torch.autograd.grad(loss.sum(), met.error)
            assert not loss.any() and not gradient.any()


WRONG_TARGETS = {
    "the difference alone": lambda batch: batch.error,
    "one variance for all": lambda batch: (batch.error, torch.ones(1)),
    "a variance of each row": lambda batch: (batch.error, batch.sigma[:, :1]),
    "a mean over dimensions": lambda batch: (batch.error.mean(-1), batch.sigma),
}


@pytest.mark.parametrize("wrong", WRONG_TARGETS)
def test_a_target_that_would_broadcast_is_refused(wrong):
    batch = random_errors()
    with pytest.raises(WrongOutput, match=r"; return the difference \[B, T, D\] and the variance"):
        distillation(batch, target=WRONG_TARGETS[wrong])
