"""Drift of answers while a reward rises."""

import pytest

from tandem.evaluation.text_drift import Drift, mean_distance, repetition, text_distance

FIRST = {"eval/reward": 0.2, "eval/length": 40.0, "eval/repetition": 0.1, "eval/other_script": 0.0}
FIRST |= {"eval/format_share": 0.2}


def test_measures_of_worked_examples():
    told = Drift(n=2).measure("so so so so, \u0434\u0430", "is it so?")
    # Words: so so so so , da; pairs: so so (3 times), so ",", "," da.
    assert told["repetition"] == pytest.approx(1 - 3 / 5)
    assert told["other_script"] == pytest.approx(2 / 10)
    assert told["format_share"] == 0.0
    tagged = "<think>ab</think>cd"
    assert Drift().measure(tagged, "x")["format_share"] == pytest.approx(15 / 19)


def test_signs_without_spaces_are_read_one_by_one():
    assert repetition("\u4f60\u597d" * 4, n=2) == pytest.approx(1 - 2 / 7)


@pytest.mark.parametrize("text", ["", "...", "a"])
def test_what_has_nothing_to_measure_is_measured_as_nothing(text):
    assert set(Drift().measure(text, "what?").values()) == {0.0}
    assert Drift().measure("abc", "1 + 1")["other_script"] == 0.0


def test_texts_are_apart_by_what_they_share():
    assert text_distance("the cat", "the cat") == text_distance("", "") == 0.0
    assert text_distance("abc", "xyz") > 0.99
    near, far = text_distance("the cat sat", "the cat sits"), text_distance("the cat sat", "a dog")
    assert 0 < near < far
    assert text_distance("ab", "abab") == text_distance("abab", "ab")


def test_texts_are_compared_with_their_own():
    before = {("p", 0): "abc", ("p", 1): "xyz", ("q", 0): "abc"}
    assert mean_distance(before, {("p", 0): "abc", ("p", 1): "xyz"}) == 0.0
    assert mean_distance(before, {("r", 0): "abc"}) is None


DRIFTED = {
    "eval/repetition": (0.4, "repetition 0.100 -> 0.400"),
    "eval/other_script": (0.2, "other script 0.000 -> 0.200"),
    "eval/format_share": (0.6, "format share 0.200 -> 0.600"),
    "eval/length": (9.0, "length 40.000 -> 9.000"),
}


@pytest.mark.parametrize(("name", "then"), DRIFTED.items(), ids=DRIFTED)
def test_a_reward_that_rises_with_a_drift_is_suspect(name, then):
    value, said = then
    now = FIRST | {"eval/reward": 0.5, name: value}
    assert said in Drift().warning(FIRST, now)
    assert Drift().warning(FIRST, now | {"eval/reward": 0.1}) is None
    assert Drift().warning(FIRST, FIRST | {"eval/reward": 0.5}) is None
    off = {name.removeprefix("eval/"): None}
    assert Drift(**off).warning(FIRST, now) is None
