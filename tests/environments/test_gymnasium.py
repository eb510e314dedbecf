"""A gymnasium environment is described in words and draws by Tandem's keys."""

from types import SimpleNamespace

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

import gymnasium
import numpy as np
from small_episodes import playing, sample_rows
from small_language import questions
from worlds import make_environment

from tandem.config import ConfigError, build, check, compose
from tandem.environments import Move
from tandem.environments.gymnasium import Gymnasium, drawing, numbers
from tandem.types import Prompt

CARDS = ["stick", "hit"]
ASKED = Prompt(id=0, source="x", text=">")


def lake(**options):
    options = {"render_mode": "ansi", "is_slippery": False} | options
    return Gymnasium(
        id="FrozenLake-v1", tell=drawing, actions=["left", "down", "right", "up"], options=options
    )


def play(world, texts, *, key=5, keys=None):
    """The observation after each move."""
    episode, heard = world.begin(ASKED, key), []
    for number, text in enumerate(texts):
        move_key = 100 + number if keys is None else keys[number]
        heard.append(episode.act(Move(text=text, number=number + 1, key=move_key)))
    episode.close()
    return episode, heard


def test_a_way_over_the_lake_is_drawn_step_by_step_and_its_end_is_worth_1():
    way = ["down", "down", "right", "right", "down", "right"]
    _, heard = play(lake(), way)
    assert heard[0].messages[0]["content"] == "SFFF\n[F]HFH\nFFFH\nHFFG"
    assert [said.reward for said in heard] == [0, 0, 0, 0, 0, 1]
    assert [said.over for said in heard] == [False] * 5 + [True]
    assert heard[0].state == play(lake(), ["left", "down"])[1][1].state  # by another path


def test_every_state_of_the_taxi_has_a_drawing_of_its_own():
    """Its passenger, destination and taxi differ by their colours alone."""
    taxi = gymnasium.make("Taxi-v4", render_mode="ansi")
    taxi.reset(seed=0)
    game, drawn = taxi.unwrapped, set()
    for game.s in range(500):
        drawn.add(drawing(game.s, taxi))
    assert len(drawn) == 500 and not any("\x1b" in text for text in drawn)
    game.s = game.encode(0, 1, 0, 1)
    shown = drawing(game.s, taxi)
    assert shown.splitlines()[1] == "|[blue R]:[yellow  ]| : :[magenta G]|"
    for game.lastaction in range(6):  # the move before it is no part of a state
        assert drawing(game.s, taxi) == shown


def test_a_line_in_brackets_within_a_drawing_is_part_of_it():
    drawn = SimpleNamespace(render=lambda: "  (Up)\nyou\n (5)\nme\n (7)\n.\n")
    assert drawing(None, drawn) == "you\n (5)\nme\n (7)\n."


def test_a_move_without_an_action_is_told_the_words_and_makes_no_step():
    _, (said, after) = play(lake(), ["upwards", "I would not go up, but DOWN."])
    assert said.messages[0]["content"].endswith("name one: left, down, right, up")
    assert (said.counts, said.over, said.reward) == ({"unparsed": 1}, False, None)
    assert after.state == "SFFF\n[F]HFH\nFFFH\nHFFG"


def test_numbers_name_actions_where_words_do_not():
    world = Gymnasium(id="Blackjack-v1", tell=numbers)
    _, (said,) = play(world, ["0"])
    assert said.over and len(said.state.split()) == 3


def test_equal_keys_draw_alike_and_the_key_of_a_move_decides_what_follows_it():
    world = Gymnasium(id="Blackjack-v1", tell=numbers, actions=CARDS)
    begun = {world.begin(ASKED, key).said for key in range(8)}
    assert len(begun) > 3
    again = [play(world, ["hit"], key=3, keys=[key])[1][0].state for key in (*range(8), 0)]
    assert len({*again}) > 3 and again[0] == again[-1]


def test_a_policy_plays_it(learned):
    world = make_environment(Gymnasium(id="Blackjack-v1", tell=numbers, actions=CARDS), max_turns=2)
    rows = sample_rows(playing(world, weights=learned), questions()[:2], 2)
    assert [row.episode["lost"] for row in rows.prompts] == [None] * 4
    first = [row.episode["turns"][0]["content"] for row in rows.prompts]
    assert first[0] == first[1] and first[2] == first[3]  # a group has equal starts


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (np.int64(12345678), "12345678"),  # not 1.23457e+07, which its neighbours would be too
        ((14, (np.float32(0.1), True)), "14 0.1 1"),
        ({"agent": np.array([[1, 2]]), "hint": {"text": "go on"}}, "agent 1 2 hint text go on"),
        ("a door", "a door"),
    ],
)
def test_observations_of_all_kinds_are_told_with_all_that_is_whole(seen, told):
    assert numbers(seen, None) == told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"id": "NoSuch-v1"}, "id=NoSuch-v1: Environment `NoSuch` doesn't exist"),
        ({"id": "Pendulum-v1"}, "id=Pendulum-v1: its actions are Box.*, not Discrete"),
        ({"id": "os:Blackjack-v1"}, "id=os:Blackjack-v1 would import a module"),
        ({"actions": ["hit"]}, r"actions=\['hit'\]: Blackjack-v1 has 2 actions"),
        ({"options": {"decks": 2}}, "id=Blackjack-v1: .*unexpected keyword argument 'decks'"),
        (
            {"id": "FrozenLake-v1", "options": {"map_name": "6x6"}},
            r"id=FrozenLake-v1 options={'map_name': '6x6'}: KeyError\('6x6'\)",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_with_its_key(options, said):
    with pytest.raises(ValueError, match=said):
        Gymnasium(**{"id": "Blackjack-v1", "tell": numbers} | options)


def composed(*words):
    return compose(["~recipe", "environment.world.id=FrozenLake-v1", *words])


@pytest.mark.parametrize(
    "words",
    [
        ["environment=gymnasium_drawn"],
        [
            "environment=gymnasium",
            f"environment.world.tell={{_target_: {drawing.__module__}.drawing, _partial_: true}}",
            "+environment.world.options.render_mode=ansi",
        ],
    ],
)
def test_a_command_line_chooses_the_drawing(words):
    cfg = composed(*words)
    check(cfg)
    episode = build(cfg.environment.world).begin(ASKED, 5)
    assert episode.said == "[S]FFF\nFHFH\nFFFH\nHFFG"
    episode.close()


def test_a_world_that_draws_as_it_is_made_is_refused():
    """The samples of a group would begin in different mazes."""
    with pytest.raises(ValueError, match=r"id=FrozenLake-v1 begins differently for equal seeds"):
        lake(map_name=None).describe().check()
    lake().describe().check()


def test_every_word_that_is_read_as_an_action_is_one():
    """The long s matches s where case is ignored, and its lower case is no s."""
    _, (said,) = play(Gymnasium(id="Blackjack-v1", tell=numbers, actions=CARDS), ["\u017ftick"])
    assert said.over


def test_a_word_is_no_function_that_tells():
    with pytest.raises(
        ConfigError, match=r"environment\.world\.tell.*_target_, with _partial_: true"
    ):
        check(composed("environment=gymnasium", "environment.world.tell=drawing"))


def test_a_drawing_needs_an_environment_that_draws():
    with pytest.raises(ValueError, match="choose environment=gymnasium_drawn"):
        Gymnasium(id="FrozenLake-v1", tell=drawing).begin(ASKED, 5)


class Placed(gymnasium.Env):
    """Begins where the options of its prompt say, and not without them."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return options["place"], {}


def test_an_environment_that_needs_options_of_a_prompt_is_not_refused():
    gymnasium.register("Placed-v0", Placed)
    world = Gymnasium(id="Placed-v0", tell=numbers)
    world.describe().check()
    placed = Prompt(id=0, source="x", text=">", fields={"reset": {"place": 3}})
    assert world.begin(placed, 5).opening.state == "3"
