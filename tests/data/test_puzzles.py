"""reasoning-gym: the questions of a task, equal in every process, and errors before a run."""

import importlib.util

import pytest

from tandem.data import Wording
from tandem.data import reasoning_gym as module
from tandem.data.reasoning_gym import reasoning_gym

installed = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning_gym is not installed"
)


@installed
@pytest.mark.system
def test_questions_are_split_and_named_for_the_reward():
    data = reasoning_gym(task="chain_sum", size=20, held_out=5, seed=0)
    assert (len(data.eval), len(data.test)) == (5, 5)
    assert len(data.train) <= 20
    asked = [p.messages[0]["content"] for p in (*data.train, *data.eval, *data.test)]
    assert len(set(asked)) == len(asked)
    named = data.test[0].fields["reasoning_gym"]
    assert named == {"task": "chain_sum", "size": 30, "seed": 0, "difficulty": {}, "index": 5}
    assert data.train[0].source == "chain_sum"


@installed
@pytest.mark.system
def test_difficulty_and_wording_reach_the_questions():
    data = reasoning_gym(
        task="chain_sum",
        size=5,
        held_out=1,
        difficulty={"min_terms": 9, "max_terms": 9},
        wording=Wording(chat=False, instruction="Only the number."),
        seed=0,
    )
    for prompt in data.train:
        assert prompt.text.endswith("\n\nOnly the number.")
        assert sum(prompt.text.count(f" {sign} ") for sign in "+-") == 8


@installed
@pytest.mark.system
def test_a_question_that_comes_twice_is_in_one_split_only():
    data = reasoning_gym(
        task="chain_sum",
        size=60,
        held_out=10,
        difficulty={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        wording=Wording(chat=False),
        seed=0,
    )
    asked = [p.text for split in (data.train, data.eval, data.test) for p in split]
    assert len(set(asked)) == len(asked) < 80


@installed
@pytest.mark.system
def test_a_task_that_draws_by_the_hash_of_text_asks_the_same_in_every_process(monkeypatch):
    asked = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        data = reasoning_gym(task="ransom_note", size=5, held_out=0, seed=0)
        asked.append(data.train)
    assert asked[0] == asked[1]


@installed
@pytest.mark.system
@pytest.mark.parametrize(
    ("task", "difficulty", "said"),
    [
        ("chain_sun", {}, "data.task=chain_sun is not one of .* tasks; try chain_sum"),
        ("chain_sum", {"min_trems": 1}, "data.difficulty=.*min_trems"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "data.difficulty=.*max_terms"),
    ],
)
def test_a_wrong_task_or_setting_is_one_line_with_the_flag(task, difficulty, said):
    with pytest.raises(ValueError, match=said) as caught:
        reasoning_gym(task=task, size=2, held_out=0, difficulty=difficulty, seed=0)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install -e "\.\[reasoning-gym\]"'):
        reasoning_gym(task="chain_sum", seed=0)
