"""The sorting tasks: demonstrations, held-out strings, and that the seed determines everything."""

from collections import Counter

import pytest

from tandem.data import Lengths
from tandem.data.sort import sort_ladder, sort_letters, sort_pairs, split_strings

SHOWN = Lengths(shortest=1, longest=5, count=200)
TRAINED = Lengths(shortest=2, longest=10, count=200)


def ladder(seed=0, prompts=TRAINED, held_out=32):
    return sort_ladder(demonstrations=SHOWN, prompts=prompts, held_out=held_out, seed=seed)


def texts(prompts):
    return {prompt.text for prompt in prompts}


def lengths(prompts):
    return Counter(len(prompt.text) - 1 for prompt in prompts)


def test_the_answer_is_the_letters_in_order():
    for prompt in ladder().train:
        assert prompt.text.endswith(">")
        assert sorted(prompt.text[:-1]) == list(prompt.answer)
        assert set(prompt.answer) <= set("abcdefghij")
        assert prompt.source == f"length_{len(prompt.answer):02}"


def test_short_strings_are_shown_and_longer_ones_are_trained_on():
    data = ladder()
    assert lengths(data.demonstrations) == dict.fromkeys(range(1, 6), 200)
    assert lengths(data.train) == {2: 36, **dict.fromkeys(range(3, 11), 200)}


def test_each_length_has_its_held_out_strings_and_the_shortest_a_third_of_them():
    data = ladder()
    assert lengths(data.eval) == lengths(data.test) == {1: 3, **dict.fromkeys(range(2, 11), 32)}


def test_no_string_stands_in_two_splits():
    data = ladder()
    known = texts(data.train) | texts(data.demonstrations)
    assert not texts(data.eval) & texts(data.test)
    assert not known & (texts(data.eval) | texts(data.test))


def test_every_string_of_one_letter_is_in_exactly_one_split():
    data = ladder()
    single = [text for split in (data.eval, data.test) for text in texts(split) if len(text) == 2]
    single += [text for text in texts(data.demonstrations) if len(text) == 2]
    assert sorted(single) == [f"{letter}>" for letter in "abcdefghij"]


def test_a_seed_says_which_strings_and_nothing_else_does():
    assert ladder() == ladder()
    assert texts(ladder().eval) != texts(ladder(seed=1).eval)


def test_an_id_belongs_to_a_string_whatever_the_seed():
    here = {prompt.text: prompt.id for prompt in ladder().train}
    there = {prompt.text: prompt.id for prompt in ladder(seed=1).train}
    both = here.keys() & there.keys()
    assert len(both) > 50
    assert all(here[text] == there[text] for text in both)


def test_ids_are_int64_and_differ_within_a_split():
    data = ladder()
    for split in (data.train, data.eval, data.test, data.demonstrations):
        ids = [prompt.id for prompt in split]
        assert len(set(ids)) == len(ids)
        assert all(0 <= id < 1 << 63 for id in ids)


def test_more_training_strings_leave_the_held_out_ones_alone():
    many = ladder(prompts=Lengths(shortest=2, longest=10, count=400))
    assert many.eval == ladder().eval
    assert many.test == ladder().test


@pytest.mark.parametrize(("length", "count"), [(2, 100), (5, 300), (9, 300)])
def test_long_lengths_are_drawn_and_short_ones_permuted_but_none_repeats(length, count):
    split = split_strings(length, count=count, held_out=32, seed=3)
    drawn = [*split.train.tolist(), *split.eval.tolist(), *split.test.tolist()]
    assert len(drawn) == len(set(drawn)) == min(10**length, count + 64)
    assert all(0 <= number < 10**length for number in drawn)


def test_letters_are_as_likely_as_one_another():
    letters = Counter("".join(prompt.text[:-1] for prompt in ladder().train))
    expected = sum(letters.values()) / 10
    assert all(abs(count - expected) < 5 * expected**0.5 for count in letters.values())


LETTERS = Lengths(shortest=4, longest=8, count=400)


def test_six_in_ten_noisy_demonstrations_have_two_letters_swapped():
    data = sort_letters(lengths=LETTERS, seed=0)
    wrong = [p for p in data.demonstrations if p.answer != "".join(sorted(p.answer))]
    assert len(data.demonstrations) == 2000
    assert len(wrong) / 2000 == pytest.approx(0.6, abs=4 * (0.24 / 2000) ** 0.5)
    for prompt in wrong:
        right = sorted(prompt.answer)
        assert sum(a != b for a, b in zip(prompt.answer, right, strict=True)) == 2


def test_the_prompts_of_the_noisy_task_keep_their_right_answers():
    data = sort_letters(lengths=LETTERS, corrupted=1.0, held_out=10, seed=0)
    assert all(p.answer == "".join(sorted(p.text[:-1])) for p in (*data.train, *data.eval))
    assert lengths(data.eval) == dict.fromkeys(range(4, 9), 10)
    assert not texts(data.train) & texts(data.eval)


def test_pairs_are_of_some_prompts_and_wait_for_their_wrong_answers():
    data = sort_pairs(lengths=LETTERS, pairs=300, held_out=10, seed=0)
    letters = sort_letters(lengths=LETTERS, held_out=10, seed=0)
    assert (data.train, data.eval, data.test) == (letters.train, letters.eval, letters.test)
    assert data.demonstrations == letters.demonstrations
    assert (len(data.pairs), data.tries) == (300, 16)
    assert set(texts(data.pairs)) <= set(texts(data.train))
    assert all(p.answer == "".join(sorted(p.text[:-1])) for p in data.pairs)
    assert {p.rejected for p in data.pairs} == {None}
    other = sort_pairs(lengths=LETTERS, pairs=300, held_out=10, seed=1)
    assert texts(other.pairs) != texts(data.pairs)


def test_a_string_of_equal_letters_cannot_be_corrupted():
    data = sort_letters(lengths=Lengths(shortest=1, longest=1, count=9), corrupted=1.0, seed=0)
    assert [p.answer for p in data.demonstrations] == [p.answer for p in data.train]


@pytest.mark.parametrize("pairs", [0, -1])
def test_a_number_of_pairs_below_one_is_refused_by_its_key(pairs):
    with pytest.raises(ValueError, match=rf"^data\.pairs={pairs} must be at least 1$"):
        sort_pairs(lengths=Lengths(shortest=4, longest=4, count=8), pairs=pairs, seed=0)


def test_impossible_lengths_are_refused():
    with pytest.raises(ValueError, match=r"longest=.* lengths must be 1 to 18"):
        Lengths(shortest=5, longest=3, count=1)


def test_global_generators_are_not_touched():
    import random

    import torch

    before = random.getstate(), torch.get_rng_state()
    ladder()
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
