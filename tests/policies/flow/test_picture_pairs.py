"""Pairs of images: admission, shared noise of their rows, and comparison."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from policies.flow.small_flow import KEY, make_prompts, small
from torch.testing import assert_close

from tandem import rng
from tandem.contracts import declare
from tandem.contracts.wrong_output import WrongOutput
from tandem.data.images import show
from tandem.data.shapes_drawn import renderings
from tandem.dynamics.decays import constant
from tandem.evaluation.preference_accuracy import compare_pairs
from tandem.evaluation.settings import Pictures
from tandem.launch import pairs
from tandem.losses.preference import dpo
from tandem.policies.flow import admission
from tandem.training.collect import Clock, RolloutSource
from tandem.training.strategies import kto_kl, preference_pairs
from tandem.types import Prompt, Scores

REFERENCE = frozenset({"ref_logp"})
SETTINGS = Pictures(
    every=1, prompts=None, samples=1, pass_at=(), steps=2, guidance_scale=1.0, threshold=None
)
WRONG = ("red square", "green circle", "blue circle", "yellow square")


def with_pictures():
    shown = {name: show(pictures[4]) for name, pictures in renderings().items()}
    return [
        replace(prompt, chosen_media=shown[prompt.text], rejected_media=shown[wrong])
        for prompt, wrong in zip(make_prompts(), WRONG, strict=True)
    ]


@pytest.fixture(scope="module")
def policy():
    return small(REFERENCE)


class Source:
    """The rows that a live source would return, without a loop."""

    def __init__(self, policy, prompts):
        self.policy, self.iteration_prompts = policy, prompts

    def prompts(self):
        return self.iteration_prompts

    def pairs(self, prompts, *, baseline=False):
        sides = [prompt.sides for prompt in prompts.values()]
        rows = [both[side] for side in (0, 1) for both in sides]
        rollout = self.policy.encode(rows, key=0, slots=[*prompts, *prompts])
        marks = torch.full_like(rollout.truncated, True) if baseline else None
        rollout = replace(rollout, baseline=marks)
        total = (torch.arange(len(rows)) < len(prompts)).float()
        return rollout, Scores(total=total, parts={}, scored=torch.ones_like(total).bool())


def test_a_prompt_is_a_pair_of_texts_or_of_pictures_or_none():
    text = Prompt(id=0, source="s", text="a", chosen="b", rejected="c")
    assert text.is_pair and with_pictures()[0].is_pair and not make_prompts()[0].is_pair
    assert [side.answer for side in text.sides] == ["b", "c"]
    chosen, rejected = with_pictures()[0].sides
    assert torch.equal(chosen.media.load(), renderings()["red circle"][4])
    assert torch.equal(rejected.media.load(), renderings()["red square"][4])
    assert (chosen.answer, rejected.text) == (None, "red circle")


def test_the_rows_of_a_pair_share_their_noise_and_no_other_does(policy):
    prompts = dict(enumerate(with_pictures()))
    rollout, scores = preference_pairs(Source(policy, with_pictures()), prompts)
    chosen, rejected = rollout.sample.key.chunk(2)
    assert torch.equal(chosen, rejected)
    assert len(chosen.unique()) == 4
    assert scores.total.tolist() == [1] * 4 + [0] * 4
    same = [replace(p, rejected_media=p.chosen_media) for p in prompts.values()]
    alike, _ = preference_pairs(Source(policy, same), dict(enumerate(same)))
    assert_close(*policy.complete(alike, frozenset({"old_logp"})).old_logp.chunk(2))


def test_the_noise_of_what_is_trained_on_is_named_by_seed_iteration_and_slot(policy):
    plan = SimpleNamespace(seed=3)
    source = RolloutSource(policy=policy, rewards=None, stream=None, plan=plan, clock=Clock())
    source.begin(5)
    rollout, _ = source.pairs(dict(zip((2, 7, 9, 11), with_pictures(), strict=True)))
    slots = torch.tensor([2, 7, 9, 11] * 2)
    assert torch.equal(rollout.sample.key, rng.key(3, "regression", 5, slots))


def test_a_pair_is_admitted_if_both_of_its_pictures_fit(policy):
    good, one, other, texts = with_pictures()
    small_picture = show(torch.zeros(8, 16, 3, dtype=torch.uint8))
    offered = [
        good,
        replace(one, chosen_media=small_picture),
        replace(other, rejected_media=small_picture),
        replace(texts, chosen_media=None, rejected_media=None, chosen="a.png", rejected="b.png"),
    ]
    kept, dropped = pairs.admit_pairs(policy, offered)
    assert [p.id for p in kept] == [0]
    reasons = {p.id: reason for p, reason in dropped}
    assert (
        reasons[1]
        == reasons[2]
        == ("has a picture of 8x16x3, but the model makes 16x16x3; set data.resize=16")
    )
    assert reasons[3] == "has no picture; set data.pictures=true if rows name files"
    assert pairs.admit_mismatched(policy, offered)[0] == kept
    assert [p.id for p in pairs.admit_with_pairs(policy, offered)[0]] == [0]


@pytest.mark.parametrize("size", [None, (8, 8)])
def test_a_picture_for_a_model_of_videos_gets_no_advice_on_its_size(size):
    films = SimpleNamespace(image_shape=(5, 8, 8, 3))
    one = replace(make_prompts()[0], media=show(torch.zeros(8, 8, 3, dtype=torch.uint8)), size=size)
    assert admission.refuse_picture(one, films) == (
        "has a picture, but the model makes videos; choose an algorithm that trains on its own "
        "samples, such as algorithm=flow_grpo"
    )


def test_mismatched_rows_show_the_pictures_of_another_prompt(policy):
    prompts = dict(enumerate(with_pictures()))
    rollout, _ = kto_kl(Source(policy, with_pictures()), prompts)
    shown = renderings()
    assert rollout.baseline.tolist() == [False] * 8 + [True] * 8
    assert torch.equal(rollout.outputs[8], shown["yellow circle"][4])
    assert torch.equal(rollout.outputs[9], shown["red circle"][4])
    assert torch.equal(rollout.outputs[12], shown["yellow square"][4])
    assert [prompt.text for prompt in rollout.prompts[8:12]] == [p.text for p in make_prompts()]


def test_held_out_pairs_of_pictures_are_compared(policy):
    loss = partial(dpo, beta=77.0)
    got = compare_pairs(policy, loss, [*with_pictures(), *make_prompts()], SETTINGS, key=KEY)
    assert got == {"eval/pair_accuracy": 0.5, "eval/pair_margin": 0.0}
    trained = small(REFERENCE)
    optimizer = torch.optim.Adam(trained.trainable().values(), lr=1e-3)
    rows = [prompt.sides[0] for prompt in with_pictures()]
    for turn in range(10):
        rollout = trained.encode(rows, key=turn, slots=range(4))
        loss_of_rows = -trained.evidence(rollout, frozenset()).logp.mean()
        optimizer.zero_grad()
        loss_of_rows.backward()
        optimizer.step()
    got = compare_pairs(trained, loss, with_pictures(), SETTINGS, key=KEY)
    assert got["eval/pair_margin"] > 0


@pytest.mark.parametrize(
    "wrong", [lambda batch: batch.logp.sum(1), lambda batch: batch.logp.mean(), lambda batch: 0.0]
)
def test_the_reward_of_a_row_is_one_number_for_each(policy, wrong):
    loss = declare(reward=wrong)(lambda batch: batch.logp)
    with pytest.raises(
        WrongOutput, match=r"; return a tensor \[B, 1\], whose last axes are here \["
    ):
        compare_pairs(policy, loss, with_pictures(), SETTINGS, key=KEY)


def move(policy):
    """An update."""
    with torch.no_grad():
        for number, parameter in enumerate(policy.trainable().values()):
            parameter += 0.05 * rng.normal(rng.key("moved", number), tuple(parameter.shape))
    policy.notify("update")
    return policy


def test_what_is_said_of_held_out_pairs_is_a_matter_of_weights_and_key_alone():
    policy, prompts = move(small(REFERENCE)), with_pictures()
    compare = partial(compare_pairs, policy, partial(dpo, beta=77.0), settings=SETTINGS)
    whole = compare(prompts=prompts, key=KEY)
    policy.iteration = 7
    for rows in (2, 6):
        policy.sampling = replace(policy.sampling, max_rows=rows)
        assert compare(prompts=prompts, key=KEY) == pytest.approx(whole, rel=1e-3)
    alone = [compare(prompts=[prompt], key=KEY) for prompt in reversed(prompts)]
    for name, value in whole.items():
        assert sum(one[name] for one in alone) / 4 == pytest.approx(value, rel=1e-3)
    other = compare(prompts=prompts, key=KEY + 1)["eval/pair_margin"]
    assert other != pytest.approx(whole["eval/pair_margin"], rel=0.01)


def test_held_out_pairs_are_compared_under_the_weights_that_are_evaluated():
    policy = move(small(REFERENCE, ema=partial(constant, decay=0.5)))
    loss, prompts = partial(dpo, beta=77.0), with_pictures()
    of_average, of_live = (
        compare_pairs(policy, loss, prompts, replace(SETTINGS, weights=weights), key=KEY)
        for weights in ("ema", "live")
    )
    average = small(REFERENCE)
    started = {name: p.detach().clone() for name, p in average.trainable().items()}
    now = policy.trainable()
    average.load_weights({name: start.lerp(now[name], 0.5) for name, start in started.items()})
    wanted = compare_pairs(average, loss, prompts, SETTINGS, key=KEY)
    assert of_average == pytest.approx(wanted, rel=1e-3)
    assert of_live["eval/pair_margin"] != pytest.approx(wanted["eval/pair_margin"], rel=0.01)
