"""Functions in the form of verl's `compute_score` and TRL's `reward_func` are rewards."""

import re
import sys
from dataclasses import replace

import pytest

from tandem.config import build, check, compose
from tandem.contracts import REGISTERED, facts_of, register_reward
from tandem.rewards import Reward, Rewards, waits
from tandem.types import Prompt

pytestmark = pytest.mark.usefixtures("unregistered")

CHAT = ({"role": "user", "content": "what is 2 + 2?"},)
PROMPTS = [
    Prompt(id=0, source="gsm8k", text="1 + 1 =", answer="2", fields={"level": 1, "split": "a"}),
    Prompt(id=1, source="math", messages=CHAT, answer="4", fields={"level": 3, "split": "b"}),
]
OUTPUTS = ["2", "5"]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "gsm8k":
        return float(solution_str == ground_truth)
    return {"score": extra_info["level"] / 10, "acc": solution_str == ground_truth}


def compute_first(data_source, solution_str, ground_truth, extra_info, *, bonus: float = 0.5):
    return [float(solution_str == ground_truth) + bonus, "why"]


def compute_little(solution_str, ground_truth, **kwargs):
    assert {*kwargs} == {"data_source", "extra_info"}
    return len(solution_str)


def accuracy(completions, ground_truth, **kwargs):
    return [float(_text(one) == right) for one, right in zip(completions, ground_truth)]  # noqa: B905


def by_column(prompts, completions, level, *, scale: float = 1.0):
    assert prompts[0] == "1 + 1 =" and prompts[1] == [*CHAT]
    return [None if one == 3 else scale * one for one in level]


def all_columns(completions, **kwargs):
    assert {*kwargs} == {"prompts", "level", "split", "answer"}
    return [ord(one) for one in kwargs["split"]]


def no_such_column(completions, difficulty):
    return [1.0] * len(completions)


def with_tokens(completions, completion_ids):
    return [1.0] * len(completions)


def _text(completion):
    if isinstance(completion, str):
        return completion
    [message] = completion
    assert message["role"] == "assistant"
    return re.sub("5", "4", message["content"])  # a message counts by its content


def dispatching(data_source, solution_str, ground_truth, extra_info=None):
    if data_source != "openai/gsm8k":
        raise NotImplementedError(data_source)
    return extra_info["index"] + extra_info["level"] / 10


def test_a_row_of_verl_tells_its_data_source_and_its_extra_info():
    """`data=hub` reads verl's files under the name of the folder, their columns as fields."""
    fields = {"data_source": "openai/gsm8k", "extra_info": {"index": 7, "split": "train"}}
    prompt = Prompt(id=0, source="tables", text="?", answer="2", fields=fields | {"level": 3})
    assert Reward(register_reward(dispatching))(["2"], [prompt]) == ([7.3], {})
    mixed = replace(prompt, source="openai/gsm8k", fields=prompt.fields | {"data_source": None})
    assert Reward(register_reward(dispatching))(["2"], [mixed]) == ([7.3], {})


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (compute_score, [1.0, 0.3]),
        (compute_first, [1.5, 0.5]),
        (compute_little, [1.0, 1.0]),
        (accuracy, [1.0, 1.0]),
        (by_column, [1.0, None]),
        (all_columns, [97.0, 98.0]),
    ],
)
def test_a_function_of_another_library_is_asked_as_it_expects(function, want):
    reward = Reward(register_reward(function))
    assert reward(OUTPUTS, PROMPTS)[0] == want
    assert facts_of(reward.function).judges == "texts"


CALLS = [{"type": "function", "function": {"name": "search", "arguments": {"text": "2 + 2"}}}]
TURNS = [  # of two moves; an agent's opening has an earlier answer, and the last message is unread
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "assistant", "content": "<call>", "turn": 1, "reward": 0.5, "tool_calls": CALLS},
    {"role": "tool", "content": "4", "context": 1},
    {"role": "assistant", "content": "It is 4", "turn": 2},
    {"role": "user", "content": "won"},
]


def see_completions(completions):
    seen.append(completions)
    return [1.0]


def see_solution(solution_str, ground_truth, extra_info):
    seen.append((solution_str, extra_info["num_turns"], extra_info["level"]))
    return 1.0


seen: list = []


@pytest.mark.parametrize(
    ("function", "place", "want"),
    [
        (see_completions, 1, [[
            {"role": "assistant", "content": "<call>", "tool_calls": CALLS},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "It is 4"},
        ]]),
        (see_completions, 0, ["<call>\n4\nIt is 4"]),
        (see_solution, 1, ("<call>\n4\nIt is 4", 4, 3)),
    ],
)  # fmt: skip
def test_a_function_of_another_library_sees_the_whole_episode(function, place, want):
    """As its own trainer shows it: from the first move to the last, with the answers between."""
    prompt = replace(PROMPTS[place], episode={"turns": TURNS, "lost": None})
    seen.clear()
    assert Reward(register_reward(function))(["It is 4"], [prompt]) == ([1.0], {})
    assert seen == [want]


def test_a_score_that_verl_would_not_read_is_missing():
    def compute_nothing(data_source, solution_str, ground_truth, extra_info):
        return {"acc": 1.0}

    compute_nothing.__qualname__ = "compute_nothing"
    values, faults = Reward(register_reward(compute_nothing))(OUTPUTS, PROMPTS)
    assert values == [None, None]
    assert next(iter(faults)).startswith("raised KeyError: \"'score'\"")


def test_a_score_that_is_waited_for_is_read_as_verl_reads_it():
    async def compute_late(data_source, solution_str, ground_truth, extra_info):
        return {"score": 0.5, "acc": True}

    compute_late.__qualname__ = "compute_late"
    assert Reward(register_reward(compute_late))(OUTPUTS, PROMPTS)[0] == [0.5, 0.5]


def test_a_column_that_the_data_lacks_is_named_with_those_there_are():
    values, faults = Reward(register_reward(no_such_column))(OUTPUTS, PROMPTS)
    assert values == [None, None]
    (said,) = faults
    assert said == (
        "needs the column difficulty, but prompts have only answer, level, split, prompts, "
        "completions"
    )


def test_what_only_another_trainer_has_is_refused_where_it_is_registered():
    with pytest.raises(ValueError, match="with_tokens: completion_ids exists only in TRL"):
        register_reward(with_tokens)
    assert ("reward", "with_tokens") not in REGISTERED


def test_how_many_are_asked_at_once_stays_declared():
    def slow_score(data_source, solution_str, ground_truth, extra_info):
        return 1.0

    slow_score.__qualname__ = "slow_score"
    reward = Reward(register_reward(waits(at_once=7)(slow_score)))
    assert (reward.waits, reward.at_once) == (True, 7)


PLUGIN = """
from tandem import register_reward

@register_reward("verl_like")
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus: float = 0.0):
    return (solution_str == ground_truth) + bonus

@register_reward
def trl_like(completions, answer, *, scale: float = 1.0, **kwargs):
    return [scale * (one == right) for one, right in zip(completions, answer)]
"""


def test_they_are_options_whose_numbers_are_set_by_name(tmp_path, monkeypatch):
    (tmp_path / "foreign_rewards.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = ["plugins=[foreign_rewards]", "reward=[verl_like,trl_like]"]
    cfg = compose([*chosen, "reward.verl_like.function.bonus=0.25"])
    check(cfg)
    numbers = {
        name: {*node.function} - {"_target_", "_partial_"} for name, node in cfg.reward.items()
    }
    assert numbers == {"verl_like": {"bonus"}, "trl_like": {"scale"}}
    scores = Rewards(build(cfg.reward, "reward"))(["2", "3"], [PROMPTS[0], PROMPTS[0]])
    assert scores.parts["verl_like"].tolist() == [1.25, 0.25]
    assert scores.parts["trl_like"].tolist() == [1.0, 0.0]
    sys.modules.pop("foreign_rewards")
