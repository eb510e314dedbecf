"""Several images per text: it is written once, painted M times, and learns from their mean."""

from dataclasses import replace

import pytest
import torch
from chain_policy import BOTH, grpo, riddles, small, unified
from policies.chain.test_chain import OLD, experience_of, outcome_of, with_kl
from records import scores
from torch.testing import assert_close

from tandem.advantages.diversity import ByDistance
from tandem.advantages.group import centre
from tandem.config import ConfigError, check, compose
from tandem.experience import select_rows
from tandem.launch.initial_weights import check_start
from tandem.losses.segments import Segment
from tandem.metrics import reduce_metrics
from tandem.policies.base import DIFFERENT
from tandem.types import SEGMENTS, WRITTEN

EITHER = pytest.mark.parametrize("make", [small, unified])  # of two networks, and of one
HALF = 0.5**0.5  # the distance of each of two values from their mean, in standard deviations


def of_texts(policy, each, rows):
    """A policy that paints `each` images of every text, and its samples."""
    sampling = replace(policy.request.sampling, pictures_per_text=each)
    policy.request = replace(policy.request, sampling=sampling)
    return policy.sample(riddles(), rows, key=7, slots=[0, 1])


def words(rollout):
    return [prompt.fields[WRITTEN] for prompt in rollout.prompts]


def in_text(rollout):
    return rollout.mask & (rollout.segment == SEGMENTS.index("text"))


@EITHER
def test_a_second_picture_of_a_text_changes_neither_the_text_nor_the_first(make):
    policy = make()
    one, two = (of_texts(policy, each, 3 * each) for each in (1, 2))
    assert one.text is None and two.text.equal(one.key.repeat_interleave(2))
    assert words(two) == [text for text in words(one) for _ in range(2)]
    first = torch.arange(0, len(two.mask), 2)
    assert all(map(torch.equal, two.outputs[::2], one.outputs))
    assert not any(map(torch.equal, two.outputs[1::2], one.outputs))
    assert torch.equal(in_text(two)[first], in_text(one)) and not in_text(two)[first + 1].any()
    assert torch.equal(two.group[first], one.group) and len({*two.key.tolist()}) == len(two.key)
    steps = two.segment == SEGMENTS.index("picture")
    assert two.mask[steps].all()


def advantages(within, reward, scored=None, of=None):
    """Advantages of each row's text and image: [B, 2]."""
    algorithm = grpo(picture=replace(BOTH["picture"], within=within))
    algorithm = algorithm if of is None else replace(algorithm, advantage=of)
    rollout = of_texts(small(algorithm), 2, 4)
    given = scores(torch.tensor(reward))
    if scored is not None:
        given = replace(given, scored=torch.tensor(scored))
    found = algorithm.experience(given, rollout).advantages
    assert not found[~rollout.mask].any()
    picture = found[:, 0]
    return torch.stack([torch.where(in_text(rollout), found, 0).sum(1), picture], 1), rollout


def test_a_text_is_worth_the_mean_of_its_pictures_and_counts_once():
    reward = [1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 0.0, 4.0]  # for the second prompt both means are 2
    found, rollout = advantages("prompt", reward)
    of_text = found[:, 0] / in_text(rollout).sum(1).clamp(min=1)
    assert_close(of_text, torch.tensor([-HALF, 0, HALF, 0, 0, 0, 0, 0]), atol=1e-5, rtol=0)
    first = torch.tensor([-3.0, -1.0, 1.0, 3.0]) / (20 / 3) ** 0.5
    second = torch.tensor([0.0, 0.0, -2.0, 2.0]) / (8 / 3) ** 0.5
    assert_close(found[:, 1], torch.cat([first, second]), atol=1e-5, rtol=0)


def test_within_a_text_a_picture_is_compared_with_those_of_that_text_alone():
    found, _ = advantages("text", [1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 0.0, 4.0])
    want = torch.tensor([-HALF, HALF, -HALF, HALF, 0, 0, -HALF, HALF])
    assert_close(found[:, 1], want, atol=1e-5, rtol=0)


def test_an_advantage_may_be_anything_outside_the_mask_that_it_is_given():
    def everywhere(scores, rollout):
        return (centre(scores, rollout.group) * 2)[:, None].expand(rollout.mask.shape)

    reward = [1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 0.0, 4.0]  # of the first prompt's texts: 2 and 6
    found, rollout = advantages("prompt", reward, of=everywhere)
    of_text = found[:, 0] / in_text(rollout).sum(1).clamp(min=1)
    assert_close(of_text, torch.tensor([-4.0, 0, 4, 0, 0, 0, 0, 0]))
    assert_close(found[:, 1], torch.tensor([-6.0, -2, 2, 6, 0, 0, -4, 4]))


def test_a_picture_without_a_score_leaves_the_mean_of_its_text():
    nothing = torch.nan
    reward = [1.0, nothing, 5.0, 7.0, nothing, nothing, 0.0, 4.0]
    known = [value == value for value in reward]
    found, rollout = advantages("prompt", [0.0 if x != x else x for x in reward], known)
    of_text = found[:, 0] / in_text(rollout).sum(1).clamp(min=1)
    assert_close(of_text[:4], torch.tensor([-HALF, 0, HALF, 0]), atol=1e-5, rtol=0)
    assert not of_text[4:].any()  # one text of the second prompt has a score: nothing to compare


def test_a_text_has_the_mean_of_a_reward_that_is_only_measured_too():
    algorithm = grpo(picture=BOTH["picture"])
    algorithm = replace(algorithm, advantage=ByDistance(of=algorithm.advantage))
    rollout = of_texts(small(algorithm), 2, 4)
    far = torch.tensor([1.0, 3.0, 4.0, 8.0, 1.0, 1.0, 1.0, 1.0])  # of the texts: 2, 6, 1, 1
    given = scores(torch.tensor([1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 0.0, 4.0]))
    given = replace(given, judges={"nearest_distance": far})
    found = algorithm.experience(given, rollout).advantages
    of_text = torch.where(in_text(rollout), found, 0).sum(1) / in_text(rollout).sum(1).clamp(min=1)
    assert_close(of_text[:4], torch.tensor([-HALF, 0, 1.5 * HALF, 0]), atol=1e-5, rtol=0)
    # The distances of the third and the fourth picture are 1 and 2 times the mean of the group.
    of_picture = torch.tensor([-3.0, -1.0, 1.0, 6.0]) / (20 / 3) ** 0.5
    assert_close(found[:4, 0], of_picture, atol=1e-5, rtol=0)


@EITHER
def test_the_text_learns_as_if_the_mean_were_the_reward_of_its_one_picture(make):
    algorithm = grpo(picture=Segment(weight=0.0))
    reward = torch.tensor([1.0, 3.0, 5.0, 7.0, 0.0, 4.0, 9.0, 1.0])
    found = []
    for each, given in ((2, reward), (1, reward.view(-1, 2).mean(1))):
        policy = make(algorithm)
        rollout = policy.complete(of_texts(policy, each, 2 * each), OLD)
        rows = algorithm.experience(scores(given), rollout)
        outcome_of(algorithm, policy, rows).loss.backward()
        found.append([p.grad for p in policy.trainable().values()])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-7)
    assert any(gradient.abs().max() > 1e-4 for gradient in found[0])


@EITHER
def test_first_ratios_are_1_and_neither_cuts_nor_the_order_of_rows_matter(make):
    algorithm = with_kl(grpo())
    policy = make(algorithm)
    for own in policy.parts.values():
        own.sampler.fill_(DIFFERENT)
    rollout = policy.complete(of_texts(policy, 2, 4), OLD | algorithm.needs)
    rows = experience_of(algorithm, rollout)
    own = algorithm.training_objective
    rows = replace(rows, weights=own.weigh(rows))
    for name in SEGMENTS:
        segment = rollout.segment == SEGMENTS.index(name)
        assert_close(rows.weights["policy"][segment].sum(), torch.tensor(1.0))
    texts = torch.where(in_text(rollout), rows.weights["policy"], 0).sum(1)
    assert_close(texts, torch.tensor([0.25, 0.0]).repeat(4))
    whole = own(policy, rows)
    seen = reduce_metrics(whole.metrics)
    assert [seen[f"actor/{name}/log_ratio_max"] for name in SEGMENTS] == [0, 0]
    cut = []
    for part in ([5, 0], [1], [7, 2, 3], [4, 6]):  # the second one trains no text
        cut.append(own(policy, select_rows(rows, torch.tensor(part))).loss)
        policy.zero_grad()
        cut[-1].backward(retain_graph=True)
        assert all(p.grad is not None for p in policy.trainable().values()), "ranks wait for each"
    assert_close(sum(cut), whole.loss, rtol=1e-4, atol=1e-7)


FOUR = "rollout.pictures_per_text=4"
REFUSED = {
    ("rollout.pictures_per_text=3",): "=3 does not divide group_size=16, which counts pictures",
    ("algorithm.segments.picture.within=text",): "within=text: a text has one picture; set it to",
    (FOUR, "algorithm/kl=in_reward", "algorithm.kl.coef=0.1"): (
        "would charge the KL of the text to one picture; set algorithm/kl=auto"
    ),
    (FOUR, "algorithm=real"): (
        "compares the rows of a group, and a text has several rows; set algorithm/loss=ppo"
    ),
    (FOUR, "algorithm/advantage=moving_average"): (
        "keeps a history of scores, and scores of texts are means; "
        "set algorithm/advantage=group_relative"
    ),
}
SLOW = [pytest.param(words, marks=[pytest.mark.slow] if FOUR in words else []) for words in REFUSED]


@pytest.mark.parametrize("words", SLOW)
def test_what_makes_no_sense_of_several_pictures_is_refused(words):
    with pytest.raises(ConfigError) as caught:
        check(compose(["model=tiny_chain", "warm_start=null", "group_size=16", *words]))
    assert REFUSED[words] in str(caught.value)


def test_a_warm_start_by_rows_of_data_samples_no_pictures_of_a_text():
    check_start(compose(["model=tiny_chain", FOUR]))
