"""Losses of samples with a text and an image, against reference values and by laws."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages import shaping
from tandem.algorithm.coupled import Coupled, entropy_bonus
from tandem.algorithm.objective import Term
from tandem.algorithm.segments import Segmented
from tandem.contracts import declare
from tandem.experience import Experience, select_rows
from tandem.losses import importance
from tandem.losses.gaussian import grpo_guard
from tandem.losses.kl import gaussian, k3, velocity_distance
from tandem.losses.policy import ppo, reinforce
from tandem.losses.reduction import sequence_mean, token_mean
from tandem.losses.segments import BySegment, Segment, in_units, loss_of, select_segment
from tandem.losses.sequence import gspo
from tandem.losses.soft_clip import cispo
from tandem.losses.trust_region import OffPolicyMask
from tandem.metrics import response_metrics
from tandem.types import CoupledBatch, Evidence, Transition, concat

close = partial(assert_close, atol=1e-6, rtol=0)
SAME = {"text": Segment(), "picture": Segment()}


def objective(loss, weigh=sequence_mean, **segments):
    """`text` and `picture`: the weight of each segment, 1 by default."""
    return Segmented(
        {"policy": Term(loss=loss, coef=1.0, weights=weigh)},
        old_policy=importance.recompute,
        segments=SAME | segments,
    )


class Known:
    """A policy with given log-probabilities."""

    def __init__(self, logp, **more):
        self.evidence = lambda rows, needs: Evidence(logp=logp[: len(rows.mask)], **more)


def experience_of(mask, segment, advantages, **known):
    rows = rollout(mask, torch.zeros(len(mask), dtype=torch.int64), segment=segment, **known)
    spread = advantages[:, None] * mask
    return Experience(rollout=rows, scores=scores(advantages.float()), advantages=spread)


def weigh(own, rows):
    return replace(rows, weights=own.weigh(rows))


def case(rows=6, seed=0):
    """Two denoising steps, then one to four tokens; log-ratios of steps are 1/1000 as large."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 5, (rows, 1), generator=generator)
    mask = torch.arange(6) < 2 + length
    segment = (torch.arange(6) < 2).to(torch.int8).expand(rows, 6)
    noise = torch.randn(3, rows, 6, generator=generator, dtype=torch.float64)
    scale = torch.where(segment == 1, 1e-3, 1.0)
    old = (-1 - noise[0].abs()) * mask
    logp = ((old + 0.4 * scale * noise[1]) * mask).requires_grad_()
    known = {"old_logp": old, "length": length[:, 0]}
    return logp, experience_of(mask, segment, noise[2, :, 0], **known)


def test_weights_are_means_within_each_segment(axis):
    mask, segment = axis("chain_weights/mask").bool(), axis("chain_weights/segment").to(torch.int8)
    lam = axis("chain_weights/lam").item()
    rows = experience_of(mask, segment, torch.zeros(len(mask)))
    weight = objective(ppo, picture=Segment(weight=lam)).weigh(rows)["policy"]
    close(weight.double(), axis("chain_weights/per_segment_sequence_mean"))
    shares = torch.stack([weight[segment == place].sum() for place in (0, 1)]).double()
    close(shares, axis("chain_weights/share_of_segments"))
    whole = token_mean(mask)
    close(whole.double(), axis("chain_weights/token_mean"))  # this weight drifts as texts grow
    shares = torch.stack([whole[segment == place].sum() for place in (0, 1)]).double()
    close(shares, axis("chain_weights/share_of_segments_token_mean"))


def test_one_clip_holds_in_the_units_of_each_segment(axis):
    read = {n: axis(f"chain_ppo/{n}") for n in ("logp", "old_logp", "advantages", "mask")}
    segment = axis("chain_ppo/segment").to(torch.int8)
    clip, of_step = axis("chain_ppo/clip_of_segment").tolist()
    picture = Segment(weight=axis("chain_ppo/lam").item(), clip_scale=of_step / clip)
    own = objective(partial(ppo, clip_low=clip, clip_high=clip), picture=picture)
    logp, mask = read["logp"].requires_grad_(), read["mask"].bool()
    rows = experience_of(mask, segment, read["advantages"], old_logp=read["old_logp"])
    record = own.record(Known(logp), rows)
    steps = sum(
        torch.where(part.mask, own.of[name].terms["policy"].loss(part), 0)
        for name, part in ((name, select_segment(record, name)) for name in own.of)
    )
    close(steps, axis("chain_ppo/loss_steps"))
    outcome = own(Known(logp), weigh(own, rows))
    close(outcome.loss.detach(), axis("chain_ppo/loss"))
    # Where the clip is inactive, min(r A, clip(r) A) is r A, and the slope is -r A w.
    gradient = torch.autograd.grad(outcome.loss, logp)[0]
    ratio = (logp - read["old_logp"]).exp().detach()
    bound = torch.where(segment == 1, of_step, clip)
    advantages = read["advantages"][:, None]
    held = ((ratio - 1) * advantages.sign() > bound) & mask
    weight = weigh(own, rows).weights["policy"]
    close(gradient, torch.where(held, 0, -ratio * advantages * weight * mask))
    assert held.sum() == 1  # the last step of the bad row, which a clip of 0.2 would never reach


def transition_of(axis, case, kl, std, gain):
    """A step in the first column and a token in the second, for two rows."""
    zero = torch.zeros(2, 1, dtype=torch.float64)
    wide = {
        name: torch.cat([x.view(2, 1), zero], 1)
        for name, x in {"kl_to_ref": kl, "std": std, "velocity_gain": gain}.items()
    }
    level = torch.cat([zero + 0.5, zero], 1)
    return Transition(sigma=level, next_sigma=level / 2, **wide)


def batch_of_steps(transition):
    segment = torch.tensor([[1, 0], [1, 0]], dtype=torch.int8)
    zero, mask = torch.zeros(2, 2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.bool)
    return CoupledBatch(
        logp=zero, advantages=zero, mask=mask, group=torch.zeros(2), segment=segment,
        transition=transition,
    )  # fmt: skip


def test_a_token_has_the_gaussian_kl_0_and_no_0_by_0(axis):
    mean, ref = axis("chain_gaussian_kl/mean"), axis("chain_gaussian_kl/ref_mean")
    std = axis("chain_gaussian_kl/std")[:1].expand(2)
    mean.requires_grad_()
    kl = (mean - ref).square().mean(1) / (2 * std.square())
    batch = batch_of_steps(transition_of(axis, "chain_gaussian_kl", kl, std, -std))
    penalty = BySegment(text=None, picture=gaussian)(batch)
    close(penalty[0].detach(), axis("chain_gaussian_kl/kl_mean_over_dims"))
    assert torch.autograd.grad(penalty.sum(), mean)[0].isfinite().all()


def test_velocity_distance_is_unigrpos_and_of_steps_alone(axis):
    v, ref = (axis(f"unigrpo_velocity/{name}") for name in ("velocity", "ref_velocity"))
    v.requires_grad_()
    std, gain = (torch.full((2,), x, dtype=torch.float64) for x in (0.3, -0.2))
    kl = (gain[:, None] * (v - ref)).square().mean(1) / (2 * std.square())
    own = objective(reinforce, sequence_mean)
    coef = axis("unigrpo_velocity/coef").item()
    penalty = BySegment(text=None, picture=velocity_distance)
    own = Segmented(
        own.terms | {"kl": Term(loss=penalty, coef=coef, weights=sequence_mean)},
        old_policy=importance.recompute, segments=SAME,
    )  # fmt: skip
    batch = batch_of_steps(transition_of(axis, "unigrpo_velocity", kl, std, gain))
    close(penalty(batch)[:, 0].detach(), axis("unigrpo_velocity/per_step"))
    rows = experience_of(batch.mask, batch.segment, torch.zeros(2, dtype=torch.float64))
    policy = Known(batch.logp.clone().requires_grad_(), transition=batch.transition)
    outcome = own(policy, weigh(own, rows))
    assert_close(
        outcome.parts["picture/kl"].double(), axis("unigrpo_velocity/loss"), rtol=1e-6, atol=0
    )
    assert "text/kl" not in outcome.parts
    slope = torch.autograd.grad(outcome.loss, v)[0]
    assert_close(slope, coef * (v - ref).detach() / 2, rtol=1e-6, atol=0)


@declare(reads={"entropy"})
def unsure(batch):
    return batch.entropy


def weighed(batch, *, weight):
    return -batch.logp * weight(batch)


def test_what_a_part_of_the_loss_of_one_segment_reads_the_other_does_not_need():
    own = objective(BySegment(text=partial(weighed, weight=unsure), picture=ppo))
    assert "entropy" in own.needs
    unread = own.unread(frozenset())
    assert ("entropy" in unread["text"], "entropy" in unread["picture"]) == (False, True)


@pytest.mark.parametrize("loss", [ppo, gspo, cispo, reinforce])
def test_a_segment_alone_says_what_it_says_beside_the_other(loss):
    """Ratios and means of a segment ignore the other one: two separate runs are the oracle."""
    logp, rows = case()
    own = objective(loss, picture=Segment(weight=0.5, clip_scale=1e-3, sequence_scale=1e-3))
    both = own(Known(logp), weigh(own, rows))
    want = 0
    for name, picture in (("text", False), ("picture", True)):
        columns = slice(0, 2) if picture else slice(2, 6)
        plain = in_units(loss, own.segments[name])
        term = Term(loss=plain, coef=1.0, weights=sequence_mean)
        alone = Coupled({"policy": term}, old_policy=importance.recompute)
        part = rows.rollout
        part = rollout(part.mask[:, columns], part.group, old_logp=part.old_logp[:, columns])
        cut = replace(rows, rollout=part, advantages=rows.advantages[:, columns])
        cut = replace(cut, weights=alone.weigh(cut))
        said = alone(Known(logp[:, columns]), cut)
        want = want + own.segments[name].weight * said.loss
        got = both.metrics[f"actor/{name}/nll"]
        assert_close(got.total / got.count, -logp[:, columns][part.mask].mean().detach())
    assert_close(both.loss, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", [ppo, gspo])
def test_any_cut_of_rows_adds_up(loss):
    logp, rows = case()
    own = objective(loss)
    rows = weigh(own, rows)
    whole = own(Known(logp), rows).loss
    parts = [torch.tensor(part) for part in ([0, 1], [2, 3, 4, 5])]
    cut = []
    for part in parts:
        some = select_rows(rows, part)
        cut.append(own(Known(logp[part][:, : some.rollout.mask.shape[1]]), some).loss)
    assert_close(sum(cut), whole)


def test_the_share_of_a_picture_does_not_fall_as_texts_grow():
    own = objective(ppo)
    shares = []
    for tokens in (1, 40):
        mask = torch.ones(3, 2 + tokens, dtype=torch.bool)
        segment = (torch.arange(2 + tokens) < 2).to(torch.int8).expand(3, -1)
        rows = experience_of(mask, segment, torch.zeros(3))
        shares.append(own.weigh(rows)["policy"][:, :2].sum())
    assert_close(shares[0], shares[1])


def test_rows_are_cut_behind_their_last_token_and_padded_as_text():
    _, rows = case()
    length = rows.rollout.length
    shortest = select_rows(rows, length.argmin()[None])
    assert shortest.rollout.mask.shape[1] == 2 + int(length.min()) and shortest.rollout.mask.all()
    whole = concat([shortest.rollout, rows.rollout])
    assert (
        whole.segment[0].tolist() == [1, 1, 0, 0, 0, 0] and whole.mask[0].sum() == 2 + length.min()
    )


def test_numbers_of_a_loss_are_in_the_units_of_the_segment():
    picture = Segment(clip_scale=0.01, sequence_scale=100.0, preference_scale=7.0)
    assert in_units(partial(ppo, clip_high=0.3, ratio_max=3.0), picture).keywords == {
        "clip_low": pytest.approx(0.002), "clip_high": pytest.approx(0.003),
        "ratio_max": pytest.approx(1.02),
    }  # fmt: skip
    assert in_units(gspo, picture).keywords["clip_low"] == pytest.approx(0.03)
    inside = in_units(OffPolicyMask(loss=ppo, delta=0.1), picture)
    assert inside.delta == 0.1 and inside.loss.keywords["clip_low"] == pytest.approx(0.002)
    assert in_units(reinforce, picture) is reinforce

    @declare(units={"width": "clip"})
    @dataclass
    class Wide:
        width: float = 0.3

    @declare(units={"width": "clip"})
    class Plain:
        def __init__(self, width=0.3): ...

    assert in_units(Wide(), picture) == Wide(width=pytest.approx(0.003))
    pair = in_units(Wide(width=(0.2, 0.3)), picture)
    assert pair == Wide(width=(pytest.approx(0.002), pytest.approx(0.003)))
    with pytest.raises(ValueError, match="its units cannot be applied in a chain; make the class"):
        in_units(Plain(), picture)
    assert loss_of(BySegment(text=None, picture=ppo), "text", picture) is None
    both = BySegment(text=ppo, picture=grpo_guard)
    assert loss_of(both, "picture", picture).func is grpo_guard


def test_an_entropy_bonus_and_a_penalty_of_tokens_are_of_tokens_alone():
    own = Segmented(
        {
            "policy": Term(loss=reinforce, coef=1.0, weights=sequence_mean),
            "entropy": Term(loss=entropy_bonus, coef=0.1, weights=token_mean, may_be_constant=True),
            "kl": Term(loss=BySegment(text=k3, picture=gaussian), coef=0.1, weights=sequence_mean),
        },
        old_policy=importance.recompute, segments=SAME,
    )  # fmt: skip
    assert {name: set(part.terms) for name, part in own.of.items()} == {
        "text": {"policy", "entropy", "kl"}, "picture": {"policy", "kl"},
    }  # fmt: skip
    assert own.of["text"].needs == {"entropy", "ref_logp"}
    assert own.of["picture"].needs == {"kl_to_ref"}


def test_what_a_limit_cut_off_is_the_text_alone():
    _, rows = case()
    truncated = torch.arange(6) == 2
    _, kept = shaping.mask(rows.scores, replace(rows.rollout, truncated=truncated))
    assert kept.mask[2].tolist() == [True, True, False, False, False, False]
    assert kept.mask[0].equal(rows.rollout.mask[0])


def test_entropy_is_that_of_tokens():
    _, rows = case()
    entropy = torch.where(rows.rollout.segment == 1, 0.0, 2.0) * rows.rollout.mask
    assert response_metrics(replace(rows.rollout, entropy=entropy))["actor/entropy"] == 2.0
