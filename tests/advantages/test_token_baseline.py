"""The optimal baseline of each token: reference values, and the minimum of a variance."""

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.token_baseline import energy_of, otb

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
ONE = torch.zeros(3, dtype=torch.int64)


def close(got, want):
    assert_close(got, want, atol=1e-6, rtol=0, check_dtype=False)


def of_axis(axis, *, before=0):
    """The reference rows; `before`: untrained steps ahead of those of the first row."""
    mask, probability = axis("otb/mask").bool(), axis("otb/prob_of_token")
    known = {"old_logp": probability.log(), "sum_pi_squared": axis("otb/sum_of_squared_probs")}
    if before:  # the first row moves right, with garbage in its old place
        late = torch.arange(3 + before) >= torch.tensor([[before], [0], [0]])
        late &= torch.arange(3 + before) < torch.tensor([[3 + before], [3], [2]])
        known = {name: spread(x[mask], late) for name, x in known.items()}
        mask = late
    return rollout(mask, ONE, **known), axis("otb/reward")


def spread(values, mask):
    return torch.full(mask.shape, torch.nan, dtype=torch.float64).masked_scatter(mask, values)


def test_it_is_the_reference_one(axis):
    rows, reward = of_axis(axis)
    close(torch.where(rows.mask, energy_of(rows), 0).cumsum(1), axis("otb/energy"))
    got = otb(scores(reward), rows)
    close(got, axis("otb/advantages"))
    close((reward[:, None] - got)[0], axis("otb/baseline_per_step"))


def test_the_reference_of_two_groups_and_what_lies_beyond_the_last_rival(vectors):
    mask = vectors["in/M"].bool()
    rows = rollout(mask, GROUPS, old_logp=vectors["in/OLD"],
                   sum_pi_squared=vectors["otb/sum_pi_sq"])  # fmt: skip
    got = otb(scores(vectors["in/R"]), rows)
    close(got, vectors["otb/adv_nozerotail"])
    assert got[0, 4] == got[4, 4] == 0, "nobody is left to compare with"


def test_steps_are_compared_by_their_number_wherever_they_stand(axis):
    (rows, reward), (late, _) = of_axis(axis), of_axis(axis, before=2)
    got = otb(scores(reward), late)
    assert torch.equal(got[late.mask], otb(scores(reward), rows)[rows.mask])
    assert not got[~late.mask].any()


def test_an_energy_is_the_squared_norm_of_a_gradient_by_logits():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64).requires_grad_()
    token = torch.randint(7, (2, 3, 1), generator=generator)
    logp = logits.log_softmax(-1).gather(-1, token)[..., 0]
    (gradient,) = torch.autograd.grad(logp.sum(), logits)
    squares = logits.softmax(-1).square().sum(-1).detach()
    mask = torch.ones(2, 3, dtype=torch.bool)
    rows = rollout(mask, ONE[:2], old_logp=logp.detach(), sum_pi_squared=squares)
    assert_close(energy_of(rows), gradient.square().sum(-1))


def test_no_other_baseline_has_less_variance_at_any_step(axis):
    rows, reward = of_axis(axis)
    weights = axis("otb/energy") * rows.mask
    best = (reward[:, None] - otb(scores(reward), rows))[0]

    def spread_of(baseline):
        return (weights * (reward[:, None] - baseline).square()).sum(0)

    for step in (-1e-2, 1e-2):
        assert (spread_of(best) < spread_of(best + step)).all()


@pytest.mark.parametrize("value", [0.3, 1234.567])
def test_a_tie_and_a_sample_without_a_rival_are_zero(axis, value):
    rows, _ = of_axis(axis)
    assert not otb(scores(torch.full((3,), value)), rows).any()
    alone = torch.tensor([True, False, False])
    assert not otb(scores(torch.full((3,), value), alone), rows).any()
