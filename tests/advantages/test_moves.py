"""Advantages that compare moves: worked examples, oracles with loops, and laws with GRPO."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from records import GRPO
from records import rollout as rows_of
from torch.testing import assert_close

from tandem.advantages.group import group_relative, unbiased_std
from tandem.advantages.moves import group_in_group, turn_to_go
from tandem.algorithm.coupled import Coupled
from tandem.algorithm.objective import Term
from tandem.experience import Experience
from tandem.losses.policy import reinforce
from tandem.losses.reduction import sequence_mean, turn_mean
from tandem.types import Rollout, Scores

EPS = 1e-6


def make_rows(turns, states, rewards, *, group=None, scored=None):
    """Rows of two-token moves separated by one observation token; states and rewards by turn."""
    width = 3 * max(turns)
    place = torch.arange(width)
    counts = torch.tensor(turns)[:, None]
    turn = torch.where((place % 3 < 2) & (place // 3 < counts), place // 3 + 1, 0)
    state = torch.zeros_like(turn)
    given = torch.zeros(turn.shape, dtype=torch.float64)
    for row, count in enumerate(turns):
        for k in range(count):
            state[row, 3 * k : 3 * k + 2] = states[row][k]
            given[row, 3 * k + 1] = rewards[row][k]
    count = len(turns)
    rollout = Rollout(
        sample=torch.zeros(count), outputs=("",) * count, prompts=(), mask=turn > 0,
        group=torch.zeros(count, dtype=torch.int64) if group is None else torch.tensor(group),
        length=3 * counts[:, 0] - 1, truncated=torch.zeros(count, dtype=torch.bool),
        turn=turn, state=state, feedback=given,
    )  # fmt: skip
    scored = torch.ones(count, dtype=torch.bool) if scored is None else torch.tensor(scored)
    total = torch.where(scored, given.sum(1), 0)
    return Scores(total=total, parts={}, scored=scored, per_step=given), rollout


def random_case(seed=0, rows=12):
    draw = torch.Generator().manual_seed(seed)
    number = lambda low, high: int(torch.randint(low, high, (), generator=draw))  # noqa: E731
    turns = [number(1, 5) for _ in range(rows)]
    states = [[number(0, 4) for _ in range(n)] for n in turns]  # 0: no name
    rewards = [[number(0, 3) / 2 for _ in range(n)] for n in turns]
    return make_rows(turns, states, rewards, group=sorted(number(0, 3) for _ in turns),
                  scored=[number(0, 6) > 0 for _ in turns])  # fmt: skip


def by_loops(scores, rollout, name_of, gamma):
    """(G - mean) / (std + eps) over the moves of one group and state, in a dictionary."""
    moves, found = {}, torch.zeros_like(scores.per_step)
    for row in range(len(rollout.mask)):
        if not scores.scored[row]:
            continue
        turns = [t for t in rollout.turn[row].unique().tolist() if t]
        worth = {}
        for k in reversed(turns):
            own = scores.per_step[row][rollout.turn[row] == k].sum().item()
            worth[k] = own + gamma * worth.get(k + 1, 0.0)
        for k in turns:
            state = int(rollout.state[row][rollout.turn[row] == k][0])
            if (name := name_of(state, k)) is not None:
                moves.setdefault((int(rollout.group[row]), name), []).append((row, k, worth[k]))
    for same in moves.values():
        values = torch.tensor([g for *_, g in same], dtype=torch.float64)
        if len(same) < 2 or values.std() < 1e-6:
            continue
        for (row, k, _), value in zip(same, values, strict=True):
            where = rollout.turn[row] == k
            found[row][where] = (value - values.mean()) / (values.std() + EPS)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_moves_of_one_state_are_compared_as_a_dictionary_would(seed):
    scores, rollout = random_case(seed)
    grpo = group_relative(scores, rollout, scale=unbiased_std)
    by_state = by_loops(scores, rollout, lambda state, k: state or None, 0.95)
    got = group_in_group(scores, rollout, scale=unbiased_std, weight=0.5)
    assert by_state.any()
    assert_close(got, grpo + 0.5 * by_state)


@pytest.mark.parametrize("seed", range(4))
def test_moves_of_one_turn_are_compared_as_a_dictionary_would(seed):
    scores, rollout = random_case(seed)
    want = by_loops(scores, rollout, lambda state, k: k, 0.7)
    assert_close(turn_to_go(scores, rollout, scale=unbiased_std, gamma=0.7), want)


def test_where_all_states_differ_it_is_grpo():
    states = [[1, 2], [3], [4, 5, 6]]
    scores, rollout = make_rows([2, 1, 3], states, [[0, 1.0], [0.5], [0, 0, 2.0]])
    got = group_in_group(scores, rollout, scale=unbiased_std)
    assert torch.equal(got, group_relative(scores, rollout, scale=unbiased_std))


@pytest.mark.parametrize("scale", [unbiased_std, None])
@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_one_turn_is_grpo_times_one_plus_the_weight(scale, weight):
    scores, rollout = make_rows([1] * 4, [[7]] * 4, [[0.0], [1.0], [0.5], [1.0]])
    got = group_in_group(scores, rollout, scale=scale, weight=weight)
    assert_close(got, (1 + weight) * group_relative(scores, rollout, scale=scale))


def test_equally_long_episodes_with_a_reward_at_the_end_are_grpos():
    last = [[0, 0, 1.0], [0, 0, 0.0], [0, 0, 0.5]]
    scores, rollout = make_rows([3, 3, 3], [[1, 2, 3]] * 3, last)
    got = turn_to_go(scores, rollout, scale=unbiased_std)
    assert_close(got, group_relative(scores, rollout, scale=unbiased_std))


def test_a_state_of_another_group_is_another_state():
    scores, rollout = make_rows(
        [1] * 4, [[7]] * 4, [[0.0], [1.0], [5.0], [5.0]], group=[0, 0, 1, 1]
    )
    got = group_in_group(scores, rollout, scale=None)
    assert_close(got[:, 0], torch.tensor([-1.0, 1.0, 0.0, 0.0], dtype=torch.float64))


def test_every_move_counts_alike_however_long_it_is():
    turn = torch.tensor([[1, 1, 0, 2, 2, 2], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    want = torch.tensor([[3, 3, 0, 2, 2, 2], [6, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]) / 18
    assert_close(turn_mean(turn > 0, turn), want)
    one = turn[1:] > 0
    assert_close(turn_mean(one, turn[1:]), sequence_mean(one))


def weigh(mask, turn):
    """The weights that an objective gives the rows; turn None: no environment."""
    zero = torch.zeros(len(mask))
    rollout = rows_of(mask, torch.zeros(len(mask), dtype=torch.int64), turn=turn)
    scores = Scores(total=zero, parts={}, scored=zero == 0)
    rows = Experience(rollout=rollout, scores=scores, advantages=zero[:, None] * mask)
    objective = Coupled({"policy": Term(loss=reinforce, coef=1.0, weights=turn_mean)})
    return objective.weigh(rows)["policy"]


def test_moves_of_a_silent_world_without_a_template_are_told_apart():
    """No token separates the moves, and an untrained token inside a move does not split it."""
    turn = torch.tensor([[1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 0, 0]]).bool()
    want = torch.tensor([[1 / 2, 1 / 2, *4 * [1 / 4]], [1 / 2, 0, 0, 1 / 2, 0, 0]]) / 3
    assert_close(weigh(mask, turn), want)
    assert_close(weigh(mask, None), sequence_mean(mask))


@pytest.mark.parametrize(
    ("advantage", "states", "said"),
    [(group_in_group, [[0, 0], [0]], True), (group_in_group, [[0, 7], [0]], False),
     (turn_to_go, [[0, 0], [0]], False)],
)  # fmt: skip
def test_a_run_warns_once_of_an_environment_that_names_no_state(advantage, states, said, caplog):
    scores, rows = make_rows([2, 1], states, [[0.0, 1.0], [0.0]])
    algorithm = replace(GRPO, advantage=partial(advantage, scale=None))
    for _ in range(2):
        algorithm.experience(scores, rows)
    assert caplog.text.count("no move of this iteration begins in a state with a name") == said
