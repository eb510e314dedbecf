"""Mazes are trees: the path that a search finds is the path that the environment allows."""

import pytest

from tandem.data.maze import CELLS, describe_cell, grow, maze
from tandem.environments import Environment, Move, Play
from tandem.environments.maze import Maze

DATA = maze(seed=0, mazes=8, held_out=30, demonstrations=30)


def way(doors, start, goal):
    """The moves of the shortest path, by breadth-first search."""
    paths = {start: ""}
    for cell in (waiting := [start]):
        for move, behind in doors[cell].items():
            if behind not in paths:
                paths[behind] = paths[cell] + move
                waiting.append(behind)
    return paths[goal], paths


@pytest.mark.parametrize("side", [2, 3, 4])
def test_every_cell_can_be_reached_by_one_way_alone(side):
    cells = CELLS[: side * side]
    for key in range(20):
        doors = grow(side, key)
        assert len(way(doors, "a", "a")[1]) == len(cells)
        assert sum(map(len, doors.values())) == 2 * (len(cells) - 1)
        assert all(doors[to][BACK[move]] == one for one in cells for move, to in doors[one].items())


BACK = {"+": "-", "-": "+", "(": ")", ")": "("}


@pytest.mark.parametrize("side", [2, 3])
def test_no_maze_that_is_held_out_is_trained_on(side):
    data = maze(seed=0, side=side, mazes=500, held_out=20, demonstrations=1)
    same = lambda prompt: [prompt.fields[name] for name in ("doors", "start", "goal")]  # noqa: E731
    held = [same(prompt) for prompt in (*data.eval, *data.test)]
    assert data.train and all(same(prompt) not in held for prompt in data.train)


def test_a_side_that_leaves_no_maze_to_train_on_is_refused():
    with pytest.raises(ValueError, match=r"data\.side=2 holds out all of data\.mazes=20; set data"):
        maze(seed=0, side=2, mazes=20, held_out=500, demonstrations=1)


def walk(prompt, moves):
    episode = Maze().begin(prompt, 0)
    said = [episode.act(Move(text=m, number=i, key=0)) for i, m in enumerate(moves, 1)]
    return episode, said


def test_who_knows_the_way_finds_every_goal():
    for prompt in (*DATA.train, *DATA.eval):
        path, _ = way(*(prompt.fields[name] for name in ("doors", "start", "goal")))
        said = walk(prompt, path)[1]
        assert [one.over for one in said] == [False] * (len(path) - 1) + [True]
        assert sum(one.reward for one in said) == 1


def test_a_wall_is_said_to_be_one_and_moves_run_out():
    prompt = DATA.train[0]
    start = describe_cell(prompt.fields["start"], prompt.fields["doors"])
    _, said = walk(prompt, ["x"] * 8)
    assert {one.messages[0]["content"] for one in said} == {f"*{start}"}
    assert [one.over for one in said] == [False] * 7 + [True]
    assert said[-1].reward == 0 and said[-1].counts == {"bumped": 1}


def test_a_demonstration_is_what_the_world_would_have_said():
    for shown in DATA.demonstrations:
        first, *rest = (message["content"] for message in shown.messages)
        goal, cell = first.split(">")[0], first.split(">")[1][0]
        open_doors = first[3:]
        for move, seen in zip(rest[::2], [*rest[1::2], None], strict=False):
            assert move in open_doors
            open_doors = None if seen is None else seen[1:]
        assert cell != goal and len(rest[::2]) <= 8


def test_a_prompt_of_other_data_is_a_fault_with_the_fix():
    from tandem.types import Prompt

    play = Play(Prompt(id=0, source="x", text=">"), key=0)
    Environment(Maze(), timeout=None, attempts=1).begin([play])
    assert "no field doors, start, goal, moves; data=maze has them" in play.lost
