"""The parts of GARDO, each by itself: a gate of the KL, a moving reference, a bonus for
diversity."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.diversity import ByDistance, relative_distance
from tandem.advantages.group import group_relative
from tandem.advantages.uncertainty import most_uncertain, uncertainty, win_share
from tandem.algorithm.controllers import ReferenceRenewal
from tandem.algorithm.coupled import Coupled
from tandem.algorithm.objective import Term
from tandem.algorithm.regularizers import KLInLoss
from tandem.contracts.wrong_output import WrongOutput
from tandem.experience import Experience, select_rows
from tandem.losses.kl import k2
from tandem.losses.policy import ppo
from tandem.losses.reduction import sequence_mean
from tandem.rewards import Reward
from tandem.rewards.distance import NearestDistance, nearest
from tandem.types import Prompt, take

ONE = torch.zeros(4, dtype=torch.int64)
NAMES = ("first", "second")


def rows(group=ONE):
    return rollout(torch.ones(len(group), 2, dtype=torch.bool), group)


def make_case(axis):
    """The score is the proxy; two auxiliary rewards are named beside it."""
    parts = dict(zip(NAMES, axis("gardo/auxiliary"), strict=True))
    return replace(scores(axis("gardo/proxy")), parts=parts)


def given_by(advantages):
    return lambda scores, rollout: advantages[:, None] * rollout.mask


def test_the_distance_is_the_reference_one_and_so_is_what_it_pays(axis):
    distance = nearest(axis("gardo/unit_features"))
    assert_close(distance, axis("gardo/nearest_distance").float(), atol=1e-6, rtol=0)
    known = replace(scores(torch.zeros(4)), parts={"nearest_distance": distance.double()})
    got = ByDistance(of=given_by(axis("gardo/advantages")))(known, rows())[:, 0]
    assert_close(got, axis("gardo/shaped_mean_one"), atol=1e-6, rtol=0)
    plain = torch.where(got > 0, got * distance.mean(), got)
    assert_close(plain, axis("gardo/shaped"), atol=1e-6, rtol=0)


def test_uncertainty_is_the_reference_one(axis):
    won = win_share(axis("gardo/proxy"), torch.ones(4, dtype=torch.bool), ONE)
    assert_close(won, axis("gardo/win_rate_proxy"))
    got = uncertainty(make_case(axis), rows(), proxy=None, auxiliary=NAMES)
    assert_close(got, axis("gardo/uncertainty"))


@pytest.mark.parametrize(("share", "held"), [(0.1, [0]), (0.5, [0]), (1.0, [0])])
def test_the_gate_holds_the_most_uncertain_and_none_whom_others_like_better(axis, share, held):
    gate = most_uncertain(make_case(axis), rows(), auxiliary=NAMES, share=share)
    assert gate.nonzero()[:, 0].tolist() == held


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (1.0, "returned a float; return a bool tensor [B], here [4]"),
        (torch.ones(4), "returned torch.float32 [4]; return a bool"),
        (torch.ones(4, 2, dtype=torch.bool), "returned torch.bool [4, 2]; return a bool"),
    ],
)
def test_a_gate_is_a_bool_for_each_sample(made, said):
    term = KLInLoss(coef=0.1, loss=k2, gate=lambda scores, rollout: made)
    with pytest.raises(WrongOutput, match=re.escape(said)):
        term.open_for(scores(torch.zeros(4)), rows())


def test_without_auxiliary_rewards_the_gate_holds_what_the_reward_likes_best():
    group = torch.arange(5).repeat_interleave(4)
    total = torch.randn(20, generator=torch.Generator().manual_seed(0))
    gate = most_uncertain(scores(total), rows(group), share=0.25)
    assert gate.sum() == 5
    best = total.view(5, 4).argmax(1) + 4 * torch.arange(5)
    assert gate[best].all()
    missing = torch.ones(20, dtype=torch.bool)
    missing[best] = False
    assert not most_uncertain(scores(total, missing), rows(group), share=0.25)[best].any()


def test_a_distance_that_is_not_known_changes_nothing_and_neither_does_a_group_of_copies():
    group = torch.tensor([0, 0, 0, 1, 1])
    distance = torch.tensor([0.1, torch.nan, 0.3, 0.0, 0.0])
    want = torch.tensor([0.5, 1.0, 1.5, 1.0, 1.0])
    assert_close(relative_distance(distance, group), want)


def make_partial_case():
    """Two sources; the second has no auxiliary rewards."""
    group = torch.tensor([0, 0, 0, 1, 1])
    own = rollout(torch.ones(5, 2, dtype=torch.bool), group)
    prompts = [replace(prompt, rewards=("score", "far")[: 2 - prompt.id]) for prompt in own.prompts]
    parts = {"score": torch.tensor([0.9, 0.1, 0.5, 0.8, 0.2])}
    parts["far"] = torch.tensor([0.1, 0.2, 0.3, torch.nan, torch.nan])
    known = replace(scores(parts["score"]), parts=parts)
    return known, replace(own, prompts=tuple(prompts))


def test_a_source_that_a_named_reward_does_not_judge_is_not_judged_by_another_one():
    known, own = make_partial_case()
    of = partial(group_relative, scale=None)
    shaped, plain = ByDistance(of=of, distance="far")(known, own), of(known, own)
    assert torch.equal(shaped[3:], plain[3:]) and not torch.equal(shaped[:3], plain[:3])
    won = win_share(known.total, known.scored, own.group)
    by_score = uncertainty(known, own, proxy=None, auxiliary=["far"])
    assert torch.equal(by_score[3:], won[3:]) and not torch.equal(by_score[:3], won[:3])
    both = uncertainty(known, own, proxy=None, auxiliary=["score", "far"])
    assert not both[3:].any(), "the mean is over those that judge it"
    gate = most_uncertain(known, own, proxy="far", share=1.0)
    assert gate.tolist() == [True] * 3 + [False] * 2


def test_prompts_which_do_not_travel_between_ranks_change_no_advantage_and_no_gate():
    known, own = make_partial_case()
    far = replace(own, prompts=())
    shaped = ByDistance(of=partial(group_relative, scale=None), distance="far")
    assert torch.equal(shaped(known, own), shaped(known, far))
    by = {"proxy": "score", "auxiliary": ["far"]}
    assert torch.equal(uncertainty(known, own, **by), uncertainty(known, far, **by))
    with pytest.raises(ValueError, match="0 prompts of 5 samples"):
        known.part("far", far.prompts)


def test_of_rows_that_tie_the_gate_holds_as_many_as_it_was_given_and_by_no_place_of_theirs():
    group = torch.arange(5).repeat_interleave(4)
    key = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    own = rollout(torch.ones(20, 2, dtype=torch.bool), group, key=key)
    right = scores((torch.arange(20) % 2).float())
    gate = most_uncertain(right, own, share=0.15)
    best = (right.total == 1).nonzero()[:, 0]
    assert set(gate.nonzero()[:, 0].tolist()) == {*best[key[best].argsort()[:3]].tolist()}
    order = torch.arange(20).flip(0)
    assert torch.equal(
        most_uncertain(take(right, order), take(own, order), share=0.15), gate[order]
    )
    exact = rollout(torch.ones(100, 2, dtype=torch.bool), torch.zeros(100, dtype=torch.int64))
    assert most_uncertain(scores(torch.ones(100)), exact, share=0.07).sum() == 7


def test_bad_samples_keep_their_advantage_and_the_facts_are_those_of_what_is_wrapped():
    known = replace(scores(torch.tensor([1.0, 0.0, 3.0, 2.0])), parts={"far": torch.rand(4)})
    of = partial(group_relative, scale=None)
    shaped, plain = ByDistance(of=of, distance="far")(known, rows()), of(known, rows())
    bad = plain < 0
    assert torch.equal(shaped[bad], plain[bad]) and not torch.equal(shaped, plain)
    with pytest.raises(ValueError, match="no reward is called 'near'"):
        ByDistance(of=of, distance="near")(known, rows())


def test_a_gate_takes_rows_out_of_one_term_and_leaves_the_weight_of_the_others():
    own = rows()
    experience = Experience(
        rollout=own, scores=scores(torch.zeros(4)), advantages=torch.zeros(4, 2),
        gates={"kl": torch.tensor([True, False, False, True])},
    )  # fmt: skip
    terms = {name: Term(loss=ppo, coef=1.0, weights=sequence_mean) for name in ("policy", "kl")}
    gated = replace(experience, weights=Coupled(terms).weigh(experience))
    assert torch.equal(gated.weights["policy"], sequence_mean(own.mask))
    assert gated.weights["kl"].sum() == 0.5 and not gated.weights["kl"][1:3].any()
    assert select_rows(gated, torch.tensor([3, 1])).gates["kl"].tolist() == [True, False]


def test_a_reference_is_renewed_by_its_age_or_by_the_kl():
    renewal = ReferenceRenewal(kl_above=0.5, every=3)
    assert [renewal.is_due(kl) for kl in (0.1, 0.2, 0.1, 0.6, 0.1)] == [
        False, False, True, True, False,
    ]  # fmt: skip
    assert renewal.report() == {"optim/reference_age": 1.0}
    later = ReferenceRenewal(kl_above=0.5, every=3)
    later.load_state_dict(renewal.state_dict())
    assert [later.is_due(0.0) for _ in range(2)] == [False, True]


def test_pictures_are_far_from_others_of_their_own_prompt_alone():
    generator = torch.Generator().manual_seed(0)
    red, blue = (torch.rand(4, 4, 3, generator=generator) * 255 for _ in range(2))
    shown = [x.byte() for x in (red, red * 0.99, blue, blue, red)]
    prompts = [Prompt(id=int(i > 2), source="s", text="?") for i in range(5)]
    group = torch.tensor([0, 0, 0, 1, 2])
    reward = Reward(NearestDistance(), weight=0.0)
    values, faults = reward(shown, prompts, group)
    assert values[0] == pytest.approx(values[1]) and values[0] < 0.01 < values[2]
    assert values[3:] == [None, None] and sum(faults.values()) == 2
    brighter = [torch.clamp(x.float() + 20, max=255).byte() for x in shown[:3]]
    assert_close(NearestDistance().features(brighter).mean(1), torch.zeros(3), atol=1e-3, rtol=0)


def test_pictures_of_one_grey_are_at_distance_0_from_one_another_alone():
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(777, 1000, 3, generator=generator) * 255
    shown = [torch.full_like(noise, grey).byte() for grey in (201, 201, 37)]
    judge, prompt = NearestDistance(), Prompt(id=0, source="s", text="?")
    assert judge(shown, prompt) == [0, 0, 0]  # brightness is no difference, as in other pictures
    assert judge([*shown[:2], noise.byte()], prompt) == [0, 0, 1]
    assert judge([shown[0], noise.byte()], prompt) == [1, 1]
