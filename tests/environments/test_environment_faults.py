"""A fault of an environment costs only its own episodes, with a reason that is counted."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from worlds import (
    NO_ANSWERS,
    Counting,
    Faulty,
    hangs,
    lies_about_the_end,
    make_environment,
    pays_nan,
    raises,
    says_no_said,
    speaks_for_the_policy,
)

from tandem.environments import About, Move, Play, Said
from tandem.rewards.result import Late
from tandem.types import Prompt

MOVE = Move(text="7", number=1, key=3)


def plays(count=2):
    return [Play(Prompt(id=i, source="x", text=">"), key=i) for i in range(count)]


def after_one_move(world, **limits):
    environment, some = make_environment(world, **limits), plays()
    environment.begin(some)
    environment.act(some, [MOVE] * len(some))
    return some


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (raises, "act raised ConnectionResetError: 'the socket is gone' at "),
        (says_no_said, "act gave str, not Said"),
        (lies_about_the_end, "act gave over='no', not True or False"),
        (pays_nan, "act gave reward=nan, not a finite number"),
        (
            speaks_for_the_policy,
            "act gave a message of role 'assistant'; a world is a user or a tool",
        ),
    ],
)
def test_a_fault_of_the_world_loses_its_own_episode_with_the_reason(fault, reason):
    broken, sound = after_one_move(Faulty({0: fault}))
    assert broken.lost.startswith(reason)
    assert (sound.lost, sound.said.state) == (None, "1")


@pytest.mark.parametrize("number", [True, 1, np.float32(1), np.int64(1), torch.tensor(1.0)])
def test_an_environment_may_give_any_number_that_a_reward_may(number):
    given = {"reward": number, "over": np.bool_(True), "counts": {"hits": number}}
    [one] = after_one_move(lambda prompt, moves: Said(**given) if moves else Said())[:1]
    assert (one.lost, one.said.reward, one.said.over, one.counts) == (None, 1.0, True, {"hits": 1})
    assert type(one.said.reward) is float and type(one.said.over) is bool


@pytest.mark.parametrize(("give", "reason"), NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_loses_its_own_episode_too(give, reason):
    broken, sound = after_one_move(Faulty({0: lambda move: give()}))
    assert broken.lost.startswith(f"act {reason}")
    assert sound.lost is None


def test_a_world_that_raises_a_timeout_where_there_is_none_of_ours_is_told_as_it_is():
    def late(move):
        raise TimeoutError

    broken, _ = after_one_move(Faulty({0: late}))
    assert broken.lost.startswith("act raised TimeoutError")


def test_worlds_that_are_late_by_limits_of_their_own_are_asked_for_three_rounds():
    def late(prompt, moves):
        asked_of.append(prompt.id)
        raise Late("no call within 60 s")

    asked_of, some = [], plays(9)
    make_environment(late, attempts=1, at_once=1, timeout=20).begin(some)
    assert asked_of == [0, 1, 2]
    said = ["no call within 60 s", "skipped: 3 calls in a row timed out"]
    assert [one.lost for one in some] == [said[0]] * 3 + [said[1]] * 6


def test_an_episode_that_is_given_up_is_closed_beside_the_others():
    closed, done = threading.Event(), threading.Event()

    class Slow(Counting):
        def begin(self, prompt, key):
            episode = super().begin(prompt, key)
            episode.act, episode.close = lambda move: done.wait(20), closed.set
            return episode

    environment, some = make_environment(Slow(), timeout=0.05, attempts=1), plays(1)
    environment.begin(some)
    environment.act(some, [MOVE])
    assert some[0].episode is None and closed.wait(20)
    done.set()


@pytest.mark.parametrize("given", [{"over": True}, {"reward": 0.5}])
def test_an_end_or_a_reward_before_the_first_move_is_a_fault(given):
    some = plays(1)
    make_environment(lambda prompt, moves: Said(**given), attempts=1).begin(some)
    assert some[0].lost == "begin gave an end or a reward before any move"


def test_openings_are_asked_side_by_side_and_given_up_as_any_call():
    """Two openings that wait for each other both finish; one that hangs is abandoned."""
    both = threading.Barrier(2, timeout=5)

    def meets(prompt, moves):
        return Said(counts={"place": float(both.wait() >= 0)})

    some = plays(2)
    make_environment(meets, timeout=5).begin(some)
    assert [one.lost for one in some] == [None, None]
    make_environment(lambda prompt, moves: hangs(None), timeout=0.05, attempts=1).begin(some)
    assert {one.lost for one in some} == {"begin took over 0.05 s (environment.timeout)"}


def test_an_episode_whose_opening_raises_is_closed():
    closed = []

    def close(self):
        closed.append(self)
        raise OSError("and this is not said")

    class Broken(Counting):
        def begin(self, prompt, key):
            own = {"opening": property(raises), "act": lambda self, move: Said(), "close": close}
            return type("E", (), own)()

    some = plays(1)
    make_environment(Broken(), attempts=1).begin(some)
    assert some[0].lost.startswith("begin raised ConnectionResetError") and len(closed) == 1


@pytest.mark.parametrize("waits", ["begin", "opening"])
def test_an_episode_that_begins_too_late_is_closed(waits):
    """The environment was late with the episode or with its opening."""
    late, closed = threading.Event(), threading.Event()

    class Slow(Counting):
        def begin(self, prompt, key):
            opens = property(lambda self: late.wait(20) and Said())
            own = {"opening": opens} if waits == "opening" else {"opening": Said()}
            if waits == "begin":
                late.wait(20)
            own |= {"act": lambda self, move: Said(), "close": lambda self: closed.set()}
            return type("E", (), own)()

    some = plays(1)
    make_environment(Slow(), timeout=0.05, attempts=1).begin(some)
    assert some[0].lost == "begin took over 0.05 s (environment.timeout)"
    assert waits == "begin" or closed.wait(20)
    late.set()
    assert closed.wait(20)


def test_an_episode_that_cannot_begin_is_tried_as_often_as_is_said():
    class Closed(Counting):
        def begin(self, prompt, key):
            super().begin(prompt, key)
            raise OSError("no such world")

    world, some = Closed(), plays(1)
    make_environment(world, attempts=3).begin(some)
    assert some[0].lost.startswith("begin raised OSError: 'no such world'")
    assert world.begun == [(0, 0)] * 3


def test_one_episode_that_is_given_to_two_rows_answers_for_another_session():
    class Single(Counting):
        def begin(self, prompt, key):
            self.one = getattr(self, "one", None) or super().begin(prompt, key)
            return self.one

    some = plays(2)
    make_environment(Single(), attempts=1).begin(some)
    assert [one.lost for one in some] == [None, "begin gave an episode that is already running"]


@pytest.mark.parametrize("lacking", ["act", "close"])
def test_an_episode_without_a_method_is_lost_by_its_name(lacking):
    class Lacking(Counting):
        def begin(self, prompt, key):
            members = {"opening": Said(), "act": lambda move: Said(), "close": lambda: None}
            del members[lacking]
            return SimpleNamespace(**members)

    environment, some = make_environment(Lacking(), attempts=1), plays(1)
    environment.begin(some)
    environment.close(some)
    assert some[0].lost.startswith("begin raised AttributeError")
    assert f"no attribute '{lacking}'" in some[0].lost


def test_what_a_world_writes_on_its_prompt_stays_with_it():
    class Writes(Counting):
        def begin(self, prompt, key):
            prompt.fields["secret"].append(1)
            return super().begin(prompt, key)

    prompt = Prompt(id=0, source="x", text=">", fields={"secret": []})
    make_environment(Writes()).begin([Play(prompt, key=0)])
    assert prompt.fields == {"secret": []}


def test_episodes_that_begin_again_are_closed_side_by_side():
    """Each waits in `close` for the other, so one after another would never meet."""
    both, met = threading.Barrier(2, timeout=1), []
    environment, some = make_environment(Counting(), timeout=5), plays(2)
    environment.begin(some)
    for play in some:
        play.episode.close = lambda: met.append(both.wait())
    environment.begin(some)
    assert len(met) == 2


def test_an_environment_may_be_async_throughout():
    """As a reward may, whose coroutines are awaited wherever one is given."""

    class Late(Counting):
        async def begin(self, prompt, key):
            episode = super().begin(prompt, key)
            act, close = episode.act, episode.close

            async def acts(move):
                return act(move)

            async def closes():
                close()

            episode.act, episode.close = acts, closes
            return episode

    for timeout in (None, 5):
        world, some = Late(), plays(1)
        environment = make_environment(world, timeout=timeout, attempts=1)
        environment.begin(some)
        environment.act(some, [MOVE])
        assert (some[0].lost, some[0].said.state) == (None, "1")
        environment.close(some)
        assert world.closed == 1


def test_a_world_that_is_an_async_function_opens_its_episodes_too():
    async def told(prompt, moves):
        return Said(state=str(len(moves)))

    [one] = after_one_move(told)[:1]
    assert (one.lost, one.said.state) == (None, "1")


def test_episodes_are_closed_and_what_close_raises_costs_nothing():
    world, some = Counting(), plays(3)
    environment = make_environment(world)
    environment.begin(some)
    some[0].episode.close = lambda: 1 / 0
    environment.close(some)
    environment.close(some)
    assert world.closed == 2


def test_counts_of_an_episode_add_up():
    environment = make_environment(lambda prompt, moves: Said(counts={"calls": 2}))
    some = plays(1)
    environment.begin(some)
    environment.act(some, [MOVE])
    assert some[0].counts == {"calls": 4.0}


def test_a_world_that_runs_code_of_the_policy_is_refused_without_a_sandbox():
    with pytest.raises(ValueError, match="runs code of the policy without a sandbox"):
        make_environment(Counting(about=About(runs_code=True)))
