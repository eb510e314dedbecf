"""A data set chooses options of other groups, unless the command line does."""

import pytest

from tandem.config import ConfigError, check, compose


def choose(*words):
    cfg = compose(words)
    return tuple(cfg.choices[group] for group in ("environment", "reward", "recipe"))


def test_hilo_chooses_its_environment_its_reward_and_its_recipe():
    assert choose("data=hilo") == ("hilo", "episode", "hilo/tiny_lm/grpo")
    by_hand = choose("data=hilo", "reward=exact_match", "~recipe")
    assert by_hand == ("hilo", "exact_match", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data=hilo", "environment=none"), "reward=episode sums the rewards of moves"),
        (
            ("data=hilo", "algorithm=dapo"),
            "algorithm.truncation_handling.limit=11 is the length of one move .* "
            "or algorithm/truncation_handling=train",
        ),
        (
            ("data=hilo", "algorithm=dr_grpo"),
            "algorithm.weights.length=11 is the length of one move",
        ),
        (("data=hilo", "reward.episode.range=[0,1]"), r"range=.* would map the sum"),
        (
            ("data=hilo", "model=tiny_masked"),
            "tiny_masked makes only one move; set environment=none",
        ),
        (
            ("environment=hilo", "model=tiny_chain"),
            "tiny_chain makes only one move; set environment=",
        ),
        (  # the preset of the algorithm has no part in it
            ("algorithm=grpo", "algorithm/advantage=turn_to_go", "data=sort_letters"),
            "^turn_to_go, of algorithm=grpo, needs the turn of each move, and environment=none",
        ),
    ],
)
def test_what_makes_no_sense_together_is_refused_in_one_line(words, said):
    with pytest.raises(ConfigError, match=said):
        check(compose(words))
