"""Tools: a valid call is answered by the tool, an invalid one by its error."""

import json
import re
import signal
import time
from functools import cache, partial
from typing import Literal

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from tandem.config import ConfigError, check
from tandem.config.building import build
from tandem.config.composition import compose
from tandem.environments import Environment, Move, Play, Said
from tandem.environments.call_formats import CALL
from tandem.environments.tool_results import result_of
from tandem.environments.tools import KeyValueStore, Tools, calculator
from tandem.types import Prompt

PROMPT = Prompt(id=0, source="x", text=">")


def begin(**numbers):
    tools = Tools({"calculator": calculator, "store": KeyValueStore}, **numbers)
    return tools.begin(PROMPT, 0)


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def say(episode, *texts):
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
    answered, ended = say(begin(cost=0.05), call("calculator", expression="37*46"), "It is 1702.")
    assert answered.messages == [{"role": "tool", "content": "1702"}]
    assert (answered.over, answered.reward) == (False, -0.05)
    assert answered.counts == {"calls": 1.0, "tool_errors": 0.0}
    assert (ended.over, ended.reward, ended.messages) == (True, None, ())


def test_the_calls_of_a_move_that_can_be_read_are_told():
    move = call("calculator", expression="1+1") + "<tool_call>{</tool_call>" + call("get", key=7)
    answered, ended = say(begin(), move, "2")
    assert [one["function"] for one in answered.tool_calls] == [
        {"name": "calculator", "arguments": {"expression": "1+1"}},
        {"name": "get", "arguments": {"key": 7}},  # of a wrong type
    ]
    assert {one["type"] for one in answered.tool_calls} == {"function"}
    assert ended.tool_calls == ()


def test_a_call_that_costs_nothing_has_no_reward():
    """It was -0.0 in the record."""
    (answered,) = say(begin(), call("calculator", expression="1+1"))
    assert answered.reward is None


def test_a_cost_that_no_reward_reads_is_refused():
    priced = ["~recipe", "environment=tools", "environment.world.cost=0.1"]
    with pytest.raises(ConfigError) as refused:
        check(compose(priced))
    assert str(refused.value) == (
        "environment.world.cost=0.1 is subtracted from the rewards of moves, and no reward sums "
        "them; set reward=[exact_match,episode] or environment.world.cost=0, or register a reward "
        "of your own that reads them with of_moves=True"
    )
    check(compose([*priced, "reward=[exact_match,episode]"]))


def test_rewards_of_calls_alone_are_refused_where_calls_cost_nothing():
    words = ["~recipe", "environment=tools"]
    with pytest.raises(ConfigError) as refused:
        check(compose([*words, "reward=episode"]))
    assert str(refused.value) == (
        "reward=episode sums the rewards of moves, and this environment gives none "
        "(About.gives_rewards); choose another reward beside it, and set environment.world.cost"
    )
    check(compose([*words, "reward=[exact_match,episode]"]))  # as where a sweep sets the cost


def test_a_store_is_an_episode_s_own():
    episode = begin()
    two = call("put", key="a", value="7") + call("get", key="a")
    assert contents(say(episode, two)[0]) == ["stored", "7"]
    assert contents(say(begin(), call("get", key="a"))[0]) == ["error: there is no key 'a'"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (call("shell", command="rm"), "there is no tool 'shell'; there are calculator, "),
        (call("calculator", expression=3), "expression of calculator must be a string, not 3"),
        (call("calculator"), "calculator takes expression: expression is missing"),
        (call("calculator", expression="1", base=2), "calculator takes expression: no base"),
        (call("calculator", expression="1/0"), "division by zero"),
        ("<tool_call>{oops</tool_call>", "the call is not JSON"),
        (
            '<tool_call>["calculator"]</tool_call>',
            "a call must be an object with name and arguments",
        ),
        ('<tool_call>{"name": "calc', "a call was begun that does not end"),
        (call("put", key="a", value="\ud83d"), "the call contains half of a surrogate pair"),
        (call("put", **{"\udc00": "a"}), "the call contains half of a surrogate pair"),
        (call("\ud83d"), "the call contains half of a surrogate pair"),
    ],
)
def test_a_wrong_call_is_the_policy_s_and_says_what_was_wrong(text, wrong):
    answer = say(begin(), text)[0]
    assert contents(answer)[0].startswith(f"error: {wrong}")
    assert answer.counts["tool_errors"] == 1 and not answer.over
    assert contents(answer)[0].encode()  # a policy can read it


@pytest.mark.parametrize(
    "text", ["<tool_call>" + "\n" * 2000, "<tool_call>" * 20_000, "<think>" * 20_000]
)
def test_a_move_that_repeats_itself_is_read_in_linear_time(text):
    begun = time.thread_time()
    say(begin(), text)
    assert time.thread_time() - begun < 1


@pytest.mark.parametrize("template_begins", [False, True])
def test_a_call_in_a_thought_is_none(template_begins):
    thought = (
        f"{'' if template_begins else '<think>'}A <tool_call> or {call('calculator')}?</think>"
    )
    answer, called = say(begin(), f"{thought}\n\n2", thought + call("calculator", expression="1+1"))
    assert answer == Said(over=True)
    assert contents(called) == ["2"] and called.counts == {"calls": 1.0, "tool_errors": 0.0}


def test_a_character_in_two_escapes_is_no_half_of_a_pair():
    episode = begin()
    both = call("put", key="a", value="\U0001f600") + call("get", key="a")
    assert "\\ud83d\\ude00" in both
    assert contents(say(episode, both)[0]) == ["stored", "\U0001f600"]


def test_what_a_tool_raises_else_is_a_fault_of_the_world():
    def broken(text: str) -> str:
        """Nothing.

        Args:
            text: Any.
        """
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        say(Tools({"broken": broken}).begin(PROMPT, 0), call("broken", text="x"))


def test_a_time_limit_of_a_tool_s_own_is_no_mistake_of_the_policy():
    """Python sets one in the main thread alone, and says so by ValueError."""
    key = "environment.timeout=null calls it in the main thread"

    def timed(text: str) -> str:
        """Nothing.

        Args:
            text: Any.
        """
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        return "in time"

    def lost_with(timeout):
        world = Environment(Tools({"timed": timed}), timeout=timeout, attempts=1)
        play = Play(PROMPT, key=0)
        world.begin([play])
        world.act([play], [Move(text=call("timed", text="x"), number=1, key=0)])
        return play.lost

    assert key in (lost_with(30) or "the policy was told")
    assert lost_with(None) is None


def zoom(place: int) -> list[str | Image.Image]:
    """Part of a picture.

    Args:
        place: Which.
    """
    return ["an <image> of ", Image.new("RGB", (place, 2), (9, 8, 7))]


def look(place: int) -> list:
    """The same, with a hint that does not announce it.

    Args:
        place: Which.
    """
    return [{"type": "text", "text": "here: "}, {"type": "image", "image": zoom(place)[1]}]


def announced(place: int) -> list[dict[str, str | Image.Image]]:
    """The same, with a hint that does.

    Args:
        place: Which.
    """
    return look(place)


def play_with(tool, *texts):
    """The episode after these moves in an environment that checks the answers."""
    world = Environment(Tools({"tool": tool}), timeout=None, attempts=1)
    play = Play(PROMPT, key=0)
    world.begin([play])
    for number, text in enumerate(texts, 1):
        world.act([play], [Move(text=text, number=number, key=0)])
    return play


def test_a_picture_that_a_tool_returns_is_shown():
    said = play_with(zoom, call("zoom", place=3) + call("<image>") + call("zoom", place=1)).said
    assert [one["content"].count("<image>") for one in said.messages] == [1, 0, 1]
    assert said.messages[0] == {"role": "tool", "content": "an < image> of <image>"}
    assert [one.shape for one in said.images] == [(2, 3, 3), (2, 1, 3)]
    assert said.images[0].load()[0, 0].tolist() == [9, 8, 7]
    assert play_with(zoom, call("zoom", place="a")).said.counts["tool_errors"] == 1


def test_a_picture_needs_a_hint_that_announces_it():
    """So that a policy that reads only texts is refused at once."""
    assert Tools({"zoom": zoom}).describe().shows
    assert not Tools({"look": look, "search": search}).describe().shows
    lost = play_with(look, call("look", place=1)).lost
    assert lost.startswith(
        "the tool look returned a picture, which its type hint does not announce"
    )
    said = play_with(announced, call("announced", place=1)).said
    assert said.messages[0]["content"] == "here: <image>" and len(said.images) == 1


def test_a_text_about_an_image_stays_as_it_is_where_tools_return_no_picture():
    def read(page: int) -> str:
        """A page.

        Args:
            page: Its number.
        """
        return "an <image> tag"

    assert contents(play_with(read, call("read", page=1)).said) == ["an <image> tag"]
    aperture = IFDRational(5, 2)  # of PIL, and no picture
    assert result_of("exif", [aperture], shows=False).text == str([aperture])


def search(
    words: list[str],
    limit: int | str = 3,
    order: Literal["new", "old"] = "new",
    place: tuple[float, float] | None = None,
    weights: dict[str, float] | None = None,
    index: str = "none",
) -> str:
    """Pages with words.

    Args:
        words: What to look for.
        limit: How many pages.
        order: Which come first.
        place: Where.
        weights: Of words.
        index: What is searched.
    """
    return f"{words} {limit} {order} {place} {weights} {index}"


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"words": "a"}, 'words of search must be an array of which each is a string, not "a"'),
        ({"words": ["a", 1]}, "words of search must be an array"),
        ({"words": [], "limit": 2.5}, "limit of search must be an integer or a string, not 2.5"),
        ({"words": [], "limit": True}, "limit of search must be an integer or a string, not true"),
        ({"words": [], "order": "NEW"}, 'order of search must be "new" or "old", not "NEW"'),
        ({"words": [], "order": None}, 'order of search must be "new" or "old", not null'),
        ({"words": [], "place": [1.0]}, "place of search must be an array of 2 or null, not [1.0]"),
        ({"words": [], "weights": {"a": "b"}}, "weights of search must be an object of which each"),
    ],
)
def test_arguments_are_of_the_types_that_any_hint_names(arguments, wrong):
    episode = Tools({"search": search}).begin(PROMPT, 0)
    assert contents(say(episode, call("search", **arguments))[0])[0].startswith(f"error: {wrong}")


@pytest.mark.parametrize("levels", [33, 450, 5000])
def test_arguments_of_too_many_levels_are_refused_as_a_call(levels):
    episode = Tools({"search": search}).begin(PROMPT, 0)
    deep = call("search", words=["?"]).replace('"?"', "[" * levels + "]" * levels)
    wrong = r"^error: the call (has over 32 levels of lists and objects|is not JSON)$"
    assert re.match(wrong, contents(say(episode, deep)[0])[0])


class Base(dict):
    def find(self, key: str) -> str:
        """Value.

        Args:
            key: Its name.
        """
        return self["found"]

    @staticmethod
    def fixed() -> str:
        """Nothing."""
        return "fixed"


class Shelf(Base):
    def __init__(self) -> None:
        self.search = search  # its own attribute, not a tool
        self["found"] = "here"

    @classmethod
    def own_name(cls) -> str:
        """Its name."""
        return cls.__name__

    @cache  # noqa: B019
    def once(self) -> str:
        """Nothing."""


def test_the_tools_of_a_class_are_what_it_and_its_bases_define():
    tools = Tools({"shelf": Shelf})
    assert [*tools.make_tools()] == ["find", "fixed", "once", "own_name"]
    calls = call("find", key="a") + call("fixed") + call("own_name")
    assert contents(say(tools.begin(PROMPT, 0), calls)[0]) == ["here", "fixed", "Shelf"]


def test_arguments_of_every_type_reach_the_tool():
    episode = Tools({"search": search}).begin(PROMPT, 0)
    given = {"words": ["a"], "limit": "all", "order": "old", "place": [1, 2.5], "weights": None}
    answer = contents(say(episode, call("search", **given))[0])
    assert answer == ["['a'] all old [1, 2.5] None none"]


def test_what_is_bound_to_a_tool_is_not_the_policy_s_to_give():
    tools = Tools({"search": partial(search, index="pages")})
    takes = tools.describe().tools[0]["function"]["parameters"]
    assert "index" not in takes["properties"] and takes["required"] == ["words"]
    right, wrong = say(
        tools.begin(PROMPT, 0), call("search", words=[]), call("search", words=[], index="x")
    )
    assert contents(right) == ["[] 3 new None None pages"]
    assert contents(wrong)[0].endswith("no index")


async def slow(text: str) -> str:
    """Nothing.

    Args:
        text: Any.
    """


def untold(text):
    pass


@pytest.mark.parametrize(
    ("functions", "wrong"),
    [
        ({"store": KeyValueStore, "again": KeyValueStore}, "two tools are called 'get'"),
        ({"slow": slow}, "slow is async"),
        ({"untold": untold}, "untold: .*docstring"),
    ],
)
def test_tools_that_cannot_be_called_are_refused_before_the_run(functions, wrong):
    with pytest.raises(ValueError, match=f"^environment.world.functions: {wrong}"):
        Tools(functions).describe()


def test_null_leaves_a_tool_out():
    """A file that extends the option, and the command line, cannot delete its keys otherwise."""
    chosen = ["environment=tools", "environment.world.functions.store=null"]
    tools = build(compose(chosen).environment.world)
    assert [tool["function"]["name"] for tool in tools.describe().tools] == ["calculator"]
    for pattern in (CALL, r"\((?P<expression>[^()]*)\)"):  # the latter names an argument of none
        with pytest.raises(ValueError, match=r"^environment.world.functions has no tool: keep one"):
            Tools({"calculator": None}, calls=pattern)


def test_of_a_single_tool_a_pattern_may_name_the_arguments():
    tools = Tools({"calculator": calculator}, calls=r"\((?P<expression>[^()]*)\)", begun="(")
    right, wrong, cut, answer = say(tools.begin(PROMPT, 0), "(23*457)", "(23*)", "(23*4", "10511")
    assert contents(right) == ["10511"]
    assert contents(wrong) == ["error: this is not an arithmetic expression"]
    assert cut.counts == {"calls": 1.0, "tool_errors": 1.0}
    assert answer.over
    for names in ({"calculator": calculator, "store": KeyValueStore}, {"store": KeyValueStore}):
        with pytest.raises(ValueError, match="nor groups that are the arguments of a single tool"):
            Tools(names, calls=r"\((?P<expression>[^()]*)\)")


@pytest.mark.parametrize(
    ("pattern", "said"), [("(", "is not a valid pattern"), ("x", "has no group")]
)
def test_a_pattern_that_finds_no_call_is_refused(pattern, said):
    with pytest.raises(ValueError, match=said):
        Tools({"calculator": calculator, "store": KeyValueStore}, calls=pattern)
