"""Rewards of text: worked examples, and numbers against Python's own arithmetic."""

from fractions import Fraction

import pytest

from tandem import rng
from tandem.rewards.text import (
    exact_match,
    format,
    max_length,
    regex_answer,
    same_answer,
    target_length,
    to_number,
)
from tandem.types import Prompt

LAST_NUMBER = r"-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?"


def prompt(answer=None):
    return Prompt(id=0, source="test", text="?", answer=answer)


@pytest.mark.parametrize(
    ("output", "answer", "want"),
    [
        ("abc", "abc", 1),
        (" abc\n", "abc", 1),
        ("abcd", "abc", 0),
        ("", "abc", 0),
        ("ABC", "abc", 0),
    ],
)
def test_an_exact_match_forgives_white_space_only(output, answer, want):
    assert exact_match(output, prompt(answer)) == want


def test_without_an_answer_there_is_no_score():
    assert exact_match("abc", prompt()) is None
    assert regex_answer("abc", prompt(), pattern=".+") is None


@pytest.mark.parametrize(
    ("output", "answer", "want"),
    [
        ("first 3, then 42, so 7.", "7", 1),
        ("first 7, then 42", "7", 0),
        ("it costs 1,200.50 in all", "1200.5", 1),
        ("it is -3", "3", 0),
        ("no number at all", "3", 0),
        ("", "3", 0),
    ],
)
def test_the_last_match_is_the_answer(output, answer, want):
    assert regex_answer(output, prompt(answer), pattern=LAST_NUMBER) == want


def test_of_several_groups_the_one_that_took_part_counts():
    pattern = r"\\boxed\{([^{}]*)\}|####\s*(\S+)"
    assert regex_answer(r"\boxed{blue} sky", prompt("blue"), pattern=pattern) == 1
    assert regex_answer(r"\boxed{blue} #### 0.5", prompt("1/2"), pattern=pattern) == 1


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("1,200.0", "1200"), (".5", "1/2"), ("$3", "3"), ("3.", "3"), ("1e3", "1000"), ("+4", "4")],
)
def test_equal_numbers_are_the_same_answer_however_written(given, wanted):
    assert same_answer(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("12,00", "1200"), ("1/2/3", "1/6"), ("1/0", "1/0."), ("50%", "50"), ("x", "y"), ("", "0")],
)
def test_what_is_no_number_is_compared_as_text(given, wanted):
    assert not same_answer(given, wanted)


def test_a_tenth_is_exact():
    assert same_answer("0.1", "1/10")
    assert not same_answer("0.333333333333333333333", "1/3")


def test_numbers_are_what_python_makes_of_them():
    whole, part, sign = (rng.bits(key, (200,)).abs().tolist() for key in (1, 2, 3))
    for a, b, s in zip(whole, part, sign, strict=True):
        text = f"{'-' if s % 2 else ''}{a:,}.{b}"
        assert to_number(text) == Fraction(text.replace(",", ""))


@pytest.mark.parametrize(
    ("characters", "want"), [(0, 0), (10, 0), (15, -0.5), (20, -1), (1000, -1)]
)
def test_length_costs_nothing_up_to_the_limit(characters, want):
    assert max_length("x" * characters, prompt(), limit=10) == want


@pytest.mark.parametrize(("characters", "want"), [(0, 0), (5, 0.5), (10, 1), (15, 0.5), (40, 0)])
def test_a_wanted_length_is_worth_one(characters, want):
    assert target_length("x" * characters, prompt(), target=10) == want


@pytest.mark.parametrize(
    ("output", "want"),
    [
        ("<think>a\nb</think>\n4", 1),
        ("<think>a</think>", 0),
        ("<think>a</think>  \n", 0),
        ("4", 0),
        ("so <think>a</think> 4", 0),
    ],
)
def test_a_form_is_that_of_the_whole_output(output, want):
    assert format(output, prompt(), pattern=r"\s*<think>.*?</think>.*\S.*") == want
