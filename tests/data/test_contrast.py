"""Wrong answers of a model become the rejected ones."""

import torch

from tandem import rng
from tandem.data.contrast import add_rejected
from tandem.policies.language.records import Sampling
from tandem.types import Prompt, Rollout

PROMPTS = [Prompt(id=i, source="s", text=f"{i}>", answer="right") for i in range(40)]
SAID = ("right", "wrong", "wrong too", " ", "right", "cut off")


class Speaker:
    """Gives one of six answers by keyed chance; prompt 7 is always answered correctly."""

    sampling = Sampling(max_new_tokens=4, max_rows=16)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def sample(self, prompts, group_size, *, key, slots) -> Rollout:
        assert group_size == 1
        self.asked.append(len(prompts))
        group = torch.tensor(slots)
        drawn = (rng.uniform(rng.key(key, group)) * len(SAID)).long().tolist()
        drawn = [0 if p.id == 7 else which for p, which in zip(prompts, drawn, strict=True)]
        rows = torch.ones(len(prompts), 4).bool()
        return Rollout(
            sample=None, outputs=tuple(SAID[which] for which in drawn), prompts=tuple(prompts),
            mask=rows, group=group, length=rows.sum(1),
            truncated=torch.tensor([which == 5 for which in drawn]),
        )  # fmt: skip


def test_the_first_whole_wrong_answer_is_rejected():
    pairs, silent = add_rejected(Speaker(), PROMPTS, tries=16, seed=0)
    assert [p.id for p in silent] == [7]
    assert [p.id for p in pairs] == [p.id for p in PROMPTS if p.id != 7]
    assert {p.chosen for p in pairs} == {"right"}
    assert {p.rejected for p in pairs} == {"wrong", "wrong too"}


def test_only_those_that_were_right_are_asked_again():
    speaker = Speaker()
    add_rejected(speaker, PROMPTS, tries=3, seed=0)
    assert speaker.asked[:3] == [16, 16, 8]
    assert sum(speaker.asked) < 2.5 * len(PROMPTS)


def test_a_wrong_answer_depends_on_the_seed_and_on_no_other_prompt():
    pairs, _ = add_rejected(Speaker(), PROMPTS, tries=16, seed=0)
    alone, _ = add_rejected(Speaker(), PROMPTS[5:6], tries=16, seed=0)
    assert alone == [p for p in pairs if p.id == 5]
    other, _ = add_rejected(Speaker(), PROMPTS, tries=16, seed=1)
    assert [p.rejected for p in other] != [p.rejected for p in pairs]


def test_what_is_right_in_every_try_gives_no_pair():
    pairs, silent = add_rejected(Speaker(), PROMPTS, tries=1, seed=0)
    assert 0 < len(pairs) < len(PROMPTS) - 1
    assert {p.id for p in pairs} | {p.id for p in silent} == {p.id for p in PROMPTS}
    assert all(p.chosen is None for p in silent)
