"""Pairs of pictures: which are admitted, what their rows share, and what is compared."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from policies.flow.small_flow import asked, small
from torch.testing import assert_close

from tandem import pairs
from tandem.collect import mismatched_pairs, preference_pairs
from tandem.data.shapes_drawn import renderings
from tandem.held_out_pairs import compare_pairs
from tandem.losses.preference import dpo
from tandem.types import Prompt, Scores

REFERENCE = frozenset({"ref_logp"})
WRONG = ("red square", "green circle", "blue circle", "yellow square")


def with_pictures():
    shown = renderings()
    return [
        replace(prompt, chosen_media=shown[prompt.text][4], rejected_media=shown[wrong][4])
        for prompt, wrong in zip(asked(), WRONG, strict=True)
    ]


@pytest.fixture(scope="module")
def policy():
    return small(REFERENCE)


class Source:
    """Shows what a live source would, without a loop around it."""

    def __init__(self, policy, prompts):
        self.policy, self.prompts = policy, prompts

    def asked(self):
        return self.prompts

    def show_pairs(self, prompts, *, baseline=False):
        sides = [prompt.sides for prompt in prompts.values()]
        rows = [both[side] for side in (0, 1) for both in sides]
        rollout = self.policy.encode(rows, slots=[*prompts, *prompts])
        marks = torch.full_like(rollout.truncated, True) if baseline else None
        rollout = replace(rollout, baseline=marks)
        total = (torch.arange(len(rows)) < len(prompts)).float()
        return rollout, Scores(total=total, parts={}, scored=torch.ones_like(total).bool())


def test_a_prompt_is_a_pair_of_texts_or_of_pictures_or_none():
    text = Prompt(id=0, source="s", text="a", chosen="b", rejected="c")
    assert text.is_pair and with_pictures()[0].is_pair and not asked()[0].is_pair
    assert [side.answer for side in text.sides] == ["b", "c"]
    chosen, rejected = with_pictures()[0].sides
    assert torch.equal(chosen.media, renderings()["red circle"][4])
    assert torch.equal(rejected.media, renderings()["red square"][4])
    assert (chosen.answer, rejected.text) == (None, "red circle")


def test_the_rows_of_a_pair_share_their_noise_and_no_other_does(policy):
    prompts = dict(enumerate(with_pictures()))
    rollout, scores = preference_pairs(Source(policy, with_pictures()), prompts)
    chosen, rejected = rollout.sample.key.chunk(2)
    assert torch.equal(chosen, rejected)
    assert len(chosen.unique()) == 4
    assert scores.total.tolist() == [1] * 4 + [0] * 4
    same = [replace(p, rejected_media=p.chosen_media) for p in prompts.values()]
    logp = partial(policy.scorer.logp, policy.model.field)
    of_chosen, of_same = logp(
        preference_pairs(Source(policy, same), dict(enumerate(same)))[0]
    ).chunk(2)
    assert_close(of_chosen, of_same)


def test_a_pair_is_admitted_if_both_of_its_pictures_fit(policy):
    good, one, other, texts = with_pictures()
    small_picture = torch.zeros(8, 16, 3, dtype=torch.uint8)
    offered = [
        good,
        replace(one, chosen_media=small_picture),
        replace(other, rejected_media=small_picture),
        replace(texts, chosen_media=None, rejected_media=None, chosen="a.png", rejected="b.png"),
    ]
    kept, dropped = pairs.admit_pairs(policy, offered)
    assert [p.id for p in kept] == [0]
    reasons = {p.id: reason for p, reason in dropped}
    assert reasons[1] == reasons[2] == "has a picture of 8x16x3, but the model's are 16x16x3"
    assert reasons[3] == "has no picture; rows that name files need data.pictures=true"
    assert pairs.admit_mismatched(policy, offered)[0] == kept
    assert [p.id for p in pairs.admit_with_pairs(policy, offered)[0]] == [0]


def test_mismatched_rows_show_the_pictures_of_another_prompt(policy):
    prompts = dict(enumerate(with_pictures()))
    rollout, _ = mismatched_pairs(Source(policy, with_pictures()), prompts)
    shown = renderings()
    assert rollout.baseline.tolist() == [False] * 8 + [True] * 8
    assert torch.equal(rollout.outputs[8], shown["yellow circle"][4])
    assert torch.equal(rollout.outputs[9], shown["red circle"][4])
    assert torch.equal(rollout.outputs[12], shown["yellow square"][4])
    assert [prompt.text for prompt in rollout.prompts[8:12]] == [p.text for p in asked()]


def test_held_out_pairs_of_pictures_are_compared(policy):
    loss = partial(dpo, beta=77.0)
    got = compare_pairs(policy, loss, [*with_pictures(), *asked()])
    assert got == {"eval/pair_accuracy": 0.5, "eval/pair_margin": 0.0}
    trained = small(REFERENCE)
    optimizer = torch.optim.Adam(trained.trainable().values(), lr=1e-3)
    rows = [prompt.sides[0] for prompt in with_pictures()]
    for _ in range(10):
        rollout = trained.encode(rows, slots=range(4))
        loss_of_rows = -trained.evidence(rollout, frozenset()).logp.mean()
        optimizer.zero_grad()
        loss_of_rows.backward()
        optimizer.step()
    assert compare_pairs(trained, loss, with_pictures())["eval/pair_margin"] > 0
