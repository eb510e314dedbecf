"""Tools: what is called well is answered by the tool, and what is not by what was wrong."""

import json

import pytest

from tandem.environments import Move
from tandem.environments.tools import KeyValueStore, Tools, calculator
from tandem.types import Prompt

PROMPT = Prompt(id=0, source="x", text=">")


def begun(**numbers):
    tools = Tools({"calculator": calculator, "store": KeyValueStore}, **numbers)
    return tools.begin(PROMPT, 0)


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def said(episode, *texts):
    return [episode.act(Move(text=t, number=i, key=0)) for i, t in enumerate(texts, 1)]


def contents(answer):
    return [message["content"] for message in answer.messages]


@pytest.mark.parametrize(
    ("expression", "value"),
    [("37*46", "1702"), ("(1 + 2) / 4", "0.75"), ("-3 - -5", "2"), ("0.1 + 0.2", "0.3"),
     (f"{10**30} + 1", f"{10**30 + 1}")],
)  # fmt: skip
def test_the_calculator_is_exact(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "2 ** 99", "1 / 0", "(" * 99 + "1", "9" * 61, "", "a", "1;2",
     "[1]", "True", "9" * 199, "9e99 * 9"],
)  # fmt: skip
def test_the_calculator_runs_no_code_and_ends_at_once(expression):
    with pytest.raises(ValueError, match=r"expression|zero|digits"):
        calculator(expression)


def test_schemas_come_from_hints_and_docstrings():
    schemas = {one["function"]["name"]: one["function"] for one in Tools(
        {"calculator": calculator, "store": KeyValueStore}).describe().tools}  # fmt: skip
    assert set(schemas) == {"calculator", "put", "get"}
    assert schemas["put"]["parameters"]["required"] == ["key", "value"]
    assert schemas["calculator"]["description"] == "Value of an arithmetic expression."


def test_a_call_is_answered_and_a_move_without_one_is_the_answer():
    answered, ended = said(begun(cost=0.05), call("calculator", expression="37*46"), "It is 1702.")
    assert answered.messages == [{"role": "tool", "content": "1702"}]
    assert (answered.over, answered.reward) == (False, -0.05)
    assert answered.counts == {"calls": 1.0, "tool_errors": 0.0}
    assert (ended.over, ended.reward, ended.messages) == (True, None, ())


def test_a_store_is_an_episode_s_own():
    episode = begun()
    two = call("put", key="a", value="7") + call("get", key="a")
    assert contents(said(episode, two)[0]) == ["stored", "7"]
    assert contents(said(begun(), call("get", key="a"))[0]) == ["error: there is no key 'a'"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (call("shell", command="rm"), "there is no tool 'shell'; there are calculator, "),
        (call("calculator", expression=3), "expression of calculator is a string, not 3"),
        (call("calculator"), "calculator takes expression: expression is missing"),
        (call("calculator", expression="1", base=2), "calculator takes expression: no base"),
        (call("calculator", expression="1/0"), "division by zero"),
        ("<tool_call>{oops</tool_call>", "the call is no JSON"),
        ('<tool_call>["calculator"]</tool_call>', "a call is an object with name and arguments"),
        ('<tool_call>{"name": "calc', "the call is no JSON"),  # cut in the middle
    ],
)
def test_a_wrong_call_is_the_policy_s_and_says_what_was_wrong(text, wrong):
    answer = said(begun(), text)[0]
    assert contents(answer)[0].startswith(f"error: {wrong}")
    assert answer.counts["tool_errors"] == 1 and not answer.over


def test_what_a_tool_raises_else_is_a_fault_of_the_world():
    def broken(text: str) -> str:
        """Nothing.

        Args:
            text: Any.
        """
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        said(Tools({"broken": broken}).begin(PROMPT, 0), call("broken", text="x"))


def test_of_a_single_tool_a_pattern_may_name_the_arguments():
    tools = Tools({"calculator": calculator}, calls=r"\((?P<expression>[^()]*)\)", begun="(")
    right, wrong, cut, answer = said(tools.begin(PROMPT, 0), "(23*457)", "(23*)", "(23*4", "10511")
    assert contents(right) == ["10511"]
    assert contents(wrong) == ["error: this is no arithmetic expression"]
    assert cut.counts == {"calls": 1.0, "tool_errors": 1.0}
    assert answer.over
    for names in ({"calculator": calculator, "store": KeyValueStore}, {"store": KeyValueStore}, {}):
        with pytest.raises(ValueError, match="nor groups that are the arguments of a single tool"):
            Tools(names, calls=r"\((?P<expression>[^()]*)\)")


@pytest.mark.parametrize(("pattern", "said"), [("(", "is no pattern"), ("x", "has no group")])
def test_a_pattern_that_finds_no_call_is_refused(pattern, said):
    with pytest.raises(ValueError, match=said):
        Tools({}, calls=pattern)
