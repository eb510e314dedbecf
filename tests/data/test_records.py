"""Data of a function: which splits and prompts are refused, and how."""

import itertools
import json

import numpy
import pytest
import torch

from tandem.config import ConfigError
from tandem.data.records import Data, groups_to_report, split_overlap
from tandem.data.stream import PromptStream
from tandem.launch.inputs import read_inputs
from tandem.launch.run import configuration
from tandem.policies.language.shown_episodes import turns_of
from tandem.stop import Stop
from tandem.training.lightning_hooks import Iterations
from tandem.types import Picture, Prompt


def make_prompt(number=0, **options):
    return Prompt(**{"id": number, "source": "s", "text": "cab>", "answer": "abc", **options})


def test_prompts_in_a_list_and_ids_of_numpy_are_as_good():
    data = Data(train=[make_prompt(numpy.int64(3))], eval=[])
    assert json.dumps(data.train[0].id) == "3"


def test_lists_in_a_prompt_are_as_good_as_tuples():
    """Policies find equal sizes and pictures by their hashes."""
    shown = Picture(name="a", height=1, width=1, load=lambda: torch.zeros(1, 1, 3))
    said = {"role": "user", "content": "cab>"}
    lists = {"messages": [said], "images": [shown], "size": [64, 32], "rewards": ["exact_match"]}
    prompt = make_prompt(text=None, **lists)
    Data(train=[prompt], eval=[])
    assert prompt == make_prompt(text=None, **{name: (*x,) for name, x in lists.items()})
    assert len({prompt.images, prompt.size, prompt.rewards}) == 3


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ((make_prompt(i) for i in itertools.count()), "Data.train is a generator; give a tuple"),
        (("cab>",), "Data.train holds a str; give a tuple of Prompts"),
        ((make_prompt("x"),), r"a prompt of Data.train \(id x\): its id is of str; give int"),
        ((make_prompt(1 << 63),), "the id 9223372036854775808 of a prompt is not from 0 to 2"),
        ((make_prompt(-1),), "the id -1 of a prompt is not from 0 to 2"),
        ((make_prompt(answer=5),), "its answer is of int; give str or None"),
        (
            (make_prompt(), make_prompt(1, answer=["abc"])),
            "its answer is of list; give str or None",
        ),
        ((make_prompt(text=5),), "its text is of int; give str or None"),
        ((make_prompt(text=None, messages=()),), "its messages are empty; give at least one"),
        *(
            ((make_prompt(text=None, messages=(message,)),), "; give texts as role and content")
            for message in ("cab", {"content": "cab"}, {"role": "user", "content": None})
        ),
        ((make_prompt(source=None),), "its source is of NoneType; give str"),
        ((make_prompt(fields=None),), "its fields is of NoneType; give Mapping"),
        ((make_prompt(size="64"),), "its size is of str; give tuple or None"),
        ((make_prompt(rewards=()),), "rewards=.. of a prompt names none; None is all of them"),
        (
            (make_prompt(fields={"reported_with": 5}),),
            "`reported_with` must be a text or a list of",
        ),
    ],
)
def test_a_split_that_is_none_is_refused(prompts, said):
    with pytest.raises(ValueError, match=said):
        Data(train=prompts, eval=())


def test_a_demonstration_whose_calls_are_no_text_is_refused():
    """Moves are trained by their content, so such a call would be an empty move."""
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    asked = {"role": "user", "content": "37+46?"}
    shown = make_prompt(text=None, messages=(asked, said), answer=None)
    with pytest.raises(ValueError, match=r"Data\.demonstrations \(id 0\): .* has `tool_calls`, "):
        Data(train=(make_prompt(),), eval=(), demonstrations=(shown,))
    plain = make_prompt(text=None, messages=(asked, said | {"tool_calls": None}), answer=None)
    Data(train=(shown,), eval=(), demonstrations=(plain,))  # a template may render a history's
    told = (asked, said, {"role": "tool", "content": "83"})  # without an environment as well
    answered = make_prompt(text=None, messages=told, answer="83")
    Data(train=(answered,), eval=(), demonstrations=(answered,))
    with pytest.raises(ValueError, match=r"prompt 0 of .*: a message has `tool_calls`, "):
        list(turns_of(answered))  # within an environment each is a move


def test_a_curriculum_that_makes_no_stream_is_refused():
    with pytest.raises(ValueError, match=r"Data\.curriculum makes a PromptStream"):
        Data(train=(make_prompt(),), eval=(), curriculum=5)


def test_a_chat_asks_the_same_in_any_order_of_its_keys():
    said = {"role": "user", "content": "1+1?"}
    one, other = (make_prompt(n, text=None, messages=(m,)) for n, m in
                  enumerate([said, dict(reversed(said.items()))]))  # fmt: skip
    assert split_overlap([one], [other]) == ([], [one])


def test_a_row_whose_group_is_null_is_reported_by_its_source_alone():
    assert groups_to_report(make_prompt(fields={"reported_with": None})) == ()
    assert groups_to_report(make_prompt(fields={"reported_with": "all"})) == ("all",)


class Ends(PromptStream):
    def draw(self, iteration, count, *, round=0):
        return super().draw(iteration, count)[: count - iteration]


def test_a_stream_that_gives_too_few_prompts_ends_the_run():
    drawn = iter(Iterations(Ends([make_prompt(i) for i in range(4)], seed=0), range(2), 2))
    assert len(next(drawn)) == 2
    with pytest.raises(
        Stop, match=r"iteration 1: Ends\.draw returned a list of 1, not a list of 2"
    ):
        next(drawn)


class Patient(PromptStream):
    """Asks the last prompt alone from the third iteration on, by a count that no buffer holds."""

    drawn = 0

    def places(self, iteration, count, round):
        self.drawn += 1
        return torch.tensor([0 if self.drawn < 3 else 3])


def test_a_state_outside_buffers_is_noticed_when_it_shows():
    stream, fresh = (Patient([make_prompt(i) for i in range(4)], seed=0) for _ in range(2))
    drawn = iter(Iterations(stream, range(4), 1, resumed=lambda: fresh))
    assert [next(drawn)[0].id for _ in range(2)] == [0, 0]
    with pytest.raises(Stop, match="Patient draws other prompts in a resumed run"):
        list(drawn)


PLUGIN = """
from tandem import register_dataset
from tandem.data.records import Data
from tandem.types import Prompt

@register_dataset
def none(*, seed: int): return None

@register_dataset
def divides(*, seed: int): return 1 / 0

@register_dataset
def leaves(*, seed: int): raise SystemExit(0)

@register_dataset
def unlike(*, seed: int): return Data(train=("cab>",), eval=())

@register_dataset
def judged(*, seed: int):
    prompt = Prompt(id=0, source="s", text="cab>", rewards=("nobody",))
    return Data(train=(prompt,), eval=())
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "data=none returned NoneType, not tandem.data.records.Data"),
        ("divides", "data=divides: ZeroDivisionError: 'division by zero' at .*odd_data_.*.py:10"),
        ("leaves", "data=leaves: SystemExit: '0' at .*odd_data_.*.py:13"),
        ("unlike", "data=unlike: Data.train holds a str; .* at .*odd_data_.*.py:16"),
        ("judged", r"reward=nobody, which is not configured.*set reward=\[exact_match,nobody\]"),
    ],
)
@pytest.mark.usefixtures("unregistered")
def test_what_goes_wrong_in_a_function_of_ones_own_is_one_line(name, said, tmp_path, monkeypatch):
    module = f"odd_data_{name}"
    (tmp_path / f"{module}.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = configuration([f"plugins=[{module}]", f"data={name}"])
    with pytest.raises(ConfigError, match=said):
        read_inputs(cfg)
