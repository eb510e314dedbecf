"""The prompts of an iteration depend on seed, iteration, round and slot alone."""

from collections import Counter

import pytest
import torch

from tandem import rng
from tandem.data import Curriculum, PromptStream
from tandem.data.stream import DrawnAhead
from tandem.stop import Stop
from tandem.types import Prompt


def prompts(sources):
    """sources: name -> number of prompts."""
    return [
        Prompt(id=place, source=source, text=f"{source} {place}")
        for source, count in sources.items()
        for place in range(count)
    ]


def texts(drawn):
    return [prompt.text for prompt in drawn]


STREAMS = (PromptStream, Curriculum)
THREE = {"a": 40, "b": 40, "c": 40}


def test_iterations_read_a_keyed_permutation_in_steps():
    stream = PromptStream(prompts({"a": 12}), seed=5)
    order = rng.permutation(rng.key(5, "prompts", 0), 12).tolist()
    read = [prompt.id for iteration in range(3) for prompt in stream.draw(iteration, 4)]
    assert read == order


def test_an_epoch_shows_every_prompt_once_and_the_next_one_in_another_order():
    stream = PromptStream(prompts({"a": 12}), seed=0)
    epochs = [
        [prompt.id for turn in range(3) for prompt in stream.draw(3 * epoch + turn, 4)]
        for epoch in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("make", STREAMS)
@pytest.mark.parametrize("size", [8, 9, 11, 15, 100])
def test_no_iteration_repeats_a_prompt_that_it_need_not_repeat(make, size):
    stream = make(prompts({"a": size}), seed=1)
    for iteration in range(30):
        assert len(set(texts(stream.draw(iteration, 8)))) == 8


def test_a_set_smaller_than_the_iteration_is_read_round_and_round():
    stream = PromptStream(prompts({"a": 3}), seed=1)
    drawn = [text for iteration in range(3) for text in texts(stream.draw(iteration, 8))]
    assert list(Counter(drawn).values()) == [8, 8, 8]
    assert set(drawn[:3]) == set(drawn[3:6])


@pytest.mark.parametrize("make", STREAMS)
def test_a_draw_does_not_depend_on_the_draws_before_it(make):
    fresh, used = (make(prompts(THREE), seed=2) for _ in range(2))
    for iteration in (0, 3, 1):
        used.draw(iteration, 8, round=iteration)
    assert texts(fresh.draw(7, 8)) == texts(used.draw(7, 8))
    assert texts(fresh.draw(7, 8, round=2)) == texts(used.draw(7, 8, round=2))


@pytest.mark.parametrize("make", STREAMS)
def test_seeds_and_iterations_draw_differently(make):
    stream, other = (make(prompts(THREE), seed=seed) for seed in (2, 3))
    assert texts(stream.draw(0, 8)) != texts(stream.draw(1, 8))
    assert texts(stream.draw(0, 8)) != texts(other.draw(0, 8))


@pytest.mark.parametrize("make", STREAMS)
def test_refills_bring_prompts_that_the_iteration_did_not_have(make):
    stream = make(prompts(THREE), seed=2)
    for iteration in range(5):
        drawn = [text for r in range(4) for text in texts(stream.draw(iteration, 8, round=r))]
        assert len(set(drawn)) == 32


def test_refills_wrap_around_when_all_were_seen_but_not_within_a_round():
    stream = PromptStream(prompts({"a": 10}), seed=2)
    for round in range(1, 6):
        assert len(set(texts(stream.draw(0, 8, round=round)))) == 8


def test_sources_start_equally_likely():
    stream = Curriculum(prompts(THREE), seed=0)
    torch.testing.assert_close(stream.weights(), torch.full((3,), 1 / 3, dtype=torch.float64))


def test_worked_example_of_a_success_rate():
    stream = Curriculum(prompts({"easy": 4, "hard": 4}), seed=0, floor=0.03, decay=0.8)
    stream.observe(["easy", "hard", "easy"], torch.tensor([1.0, 0.0, 0.5]))
    # easy: 0.8 x 0.5 + 0.2 x 0.75 = 0.55; hard: 0.8 x 0.5 = 0.4
    want = torch.tensor([0.55 * 0.45 + 0.03, 0.4 * 0.6 + 0.03], dtype=torch.float64)
    torch.testing.assert_close(stream.weights(), want / want.sum())


def test_an_unseen_source_and_a_missing_success_change_nothing():
    stream = Curriculum(prompts(THREE), seed=0)
    stream.observe(["a", "b"], torch.tensor([1.0, torch.nan]))
    assert stream.success.tolist() == pytest.approx([0.6, 0.5, 0.5])


def test_success_outside_the_unit_interval_counts_as_its_nearer_end():
    stream = Curriculum(prompts(THREE), seed=0)
    stream.observe(["a", "b"], torch.tensor([7.0, -3.0]))
    assert stream.success.tolist() == pytest.approx([0.6, 0.4, 0.5])


def test_sources_are_drawn_as_often_as_their_weights_say():
    stream = Curriculum(prompts({"done": 500, "open": 500, "hopeless": 500}), seed=0)
    for _ in range(60):
        stream.observe(["done", "open", "hopeless"], torch.tensor([1.0, 0.5, 0.0]))
    drawn = Counter(prompt.source for i in range(200) for prompt in stream.draw(i, 32))
    weights = {"done": 0.03, "open": 0.28, "hopeless": 0.03}
    for source, weight in weights.items():
        chance = weight / 0.34
        assert drawn[source] / 6400 == pytest.approx(chance, abs=5 * (chance / 6400) ** 0.5)


def test_what_a_curriculum_learnt_survives_its_state():
    stream, resumed = (Curriculum(prompts(THREE), seed=0) for _ in range(2))
    for _ in range(9):
        stream.observe(["a", "b", "c"], torch.tensor([1.0, 0.3, 0.0]))
    resumed.load_state_dict(stream.state_dict())
    assert stream.state_dict()["success"].dtype == torch.float64
    assert texts(resumed.draw(9, 16)) == texts(stream.draw(9, 16))
    assert texts(resumed.draw(9, 16)) != texts(Curriculum(prompts(THREE), seed=0).draw(9, 16))


def test_the_rates_stay_float64_when_the_module_around_them_is_cast():
    stream = Curriculum(prompts(THREE), seed=0)
    around = torch.nn.ModuleList([stream, torch.nn.Linear(1, 1)])
    around.bfloat16()
    assert stream.success.dtype == torch.float64
    assert around[1].weight.dtype == torch.bfloat16


def test_a_source_smaller_than_its_share_repeats():
    stream = Curriculum(prompts({"a": 2}), seed=0)
    assert sorted(Counter(texts(stream.draw(0, 6))).values()) == [3, 3]


def test_what_cannot_be_drawn_from_is_refused():
    with pytest.raises(ValueError, match="at least one prompt"):
        PromptStream([], seed=0)
    with pytest.raises(ValueError, match=r"floor=0, decay=0\.8"):
        Curriculum(prompts(THREE), seed=0, floor=0)


def test_draws_of_a_checkpoint_are_not_read_from_fewer_prompts():
    drawn, fewer, same = (
        DrawnAhead(PromptStream(prompts({"a": size}), seed=0), ahead=1, kept=1)
        for size in (9, 5, 9)
    )
    drawn.draw(0, 4)
    same.load_state(drawn.state())
    assert same.prompts_of(1) == drawn.prompts_of(1)
    with pytest.raises(Stop, match=r"drew prompt [5-8], and there are 5; restore the data") as seen:
        fewer.load_state(drawn.state())
    assert not seen.value.may_save
