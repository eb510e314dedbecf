"""The format of calls is found in what a chat template writes for a probe, or is unknown."""

import json
import time

import pytest

from tandem.environments.call_formats import NAME, PROBE, given_format, recognise
from tandem.environments.tool_calls import Refused

SCHEMAS = {
    "search": {
        "properties": {
            "words": {"type": "string"},
            "limit": {"type": "integer"},
            "deep": {"type": "boolean"},
            "places": {"type": "array", "items": {"type": "integer"}},
        }
    }
}
SEARCH = ("search", {"words": "a < b\n    c", "limit": 3, "deep": True, "places": [1, 2]})
ALONE = ("ls", {})


def spell(value):
    """As templates do in tags: lists in JSON, anything else by `str`."""
    return json.dumps(value) if isinstance(value, list) else str(value)


def hermes(*calls):
    said = ({"name": name, "arguments": arguments} for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in said)


def granite(*calls):
    said = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"<|tool_call|>{json.dumps(said)}"


def llama(call, *more):
    return json.dumps({"name": call[0], "parameters": call[1]})


def deepseek(*calls):
    said = (
        f"<|call_begin|>function<|sep|>{name}\n```json\n{json.dumps(arguments)}\n```<|call_end|>"
        for name, arguments in calls
    )
    return "<|calls_begin|>" + "\n".join(said) + "<|calls_end|>"


def named(*calls):
    """Without an end."""
    return "".join(f"[CALL]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def qwen_coder(*calls):
    said = (
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={n}>\n{spell(v)}\n</parameter>\n" for n, v in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )
    return "\n".join(said)


def glm(*calls):
    tags = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
    said = (
        f"<tool_call>{name}\n"
        + "".join(tags.format(n, spell(v)) for n, v in arguments.items())
        + "</tool_call>"
        for name, arguments in calls
    )
    return "\n".join(said)


def attributes(*calls):
    said = (
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{n}">{spell(v)}</parameter>\n' for n, v in arguments.items())
        + "</invoke>\n"
        for name, arguments in calls
    )
    return f"<calls>\n{''.join(said)}</calls>"


def python(*calls):
    said = (
        f"{name}({', '.join(f'{n}={v!r}' for n, v in arguments.items())})"
        for name, arguments in calls
    )
    return f"[{', '.join(said)}]"


def words(*calls):
    return " ".join(f"call {name} {json.dumps(arguments)} end" for name, arguments in calls)


def format_of(write):
    return recognise([(write(PROBE), write(PROBE, PROBE))])


WRITERS = [hermes, granite, deepseek, named, qwen_coder, glm, attributes]


@pytest.mark.parametrize("write", WRITERS)
def test_calls_are_read_as_they_are_written_for_the_probe(write):
    form = format_of(write)
    text = f"I look.\n\n{write(SEARCH, ALONE, SEARCH)}"
    assert [*form.calls_in(text, SCHEMAS)] == [SEARCH, ALONE, SEARCH]
    assert not form.is_cut(text)
    assert [*form.calls_in("a final answer of {1}", SCHEMAS)] == []


@pytest.mark.parametrize("write", [deepseek, qwen_coder, glm, attributes])
def test_blanks_between_marks_may_be_left_out(write):
    compact = write((SEARCH[0], {"words": "a"})).replace("\n", "")
    assert [*format_of(write).calls_in(compact, SCHEMAS)] == [("search", {"words": "a"})]


def test_a_call_that_is_all_of_a_move_begins_like_the_probe():
    form = format_of(llama)
    assert [*form.calls_in(llama(SEARCH), {})] == [SEARCH]
    assert [*form.calls_in('{"name":"ls"}', {})] == [ALONE]
    for answer in ("7", '{"answer": 7}', "[1, 2]", f"So: {llama(SEARCH)}"):
        assert [*form.calls_in(answer, {})] == []
    (wrong,) = form.calls_in('{"name": "ls", "parameters": {', {})
    assert str(wrong) == "the call is not JSON"
    assert form.remove(f"<think>So.</think>\n{llama(SEARCH)}") == "<think>So.</think>"


@pytest.mark.parametrize("write", WRITERS)
def test_a_call_that_was_cut_is_a_call(write):
    form, whole = format_of(write), write(SEARCH)
    for length in (len(whole) // 2, len(whole) - 25):
        said = [*form.calls_in(whole[:length], SCHEMAS)]
        assert form.is_cut(whole[:length]) or any(isinstance(one, Refused) for one in said)


@pytest.mark.parametrize("write", [python, words, lambda *calls: "", lambda *calls: NAME])
def test_a_format_that_is_none_of_these_is_unknown(write):
    """Nothing is guessed: strings written unlike numbers, marks that are words."""
    assert format_of(write) is None


def test_the_first_form_of_a_message_that_can_be_read_counts():
    forms = [("", ""), (python(PROBE), python(PROBE, PROBE)), (glm(PROBE), glm(PROBE, PROBE))]
    assert recognise(forms) == format_of(glm)


def test_a_text_has_the_type_that_the_tool_asks_for_or_stays_one():
    said = ("search", {"words": "12", "limit": "three", "deep": "true", "unknown": "7"})
    (call,) = format_of(glm).calls_in(glm(said), SCHEMAS)
    assert call == ("search", {"words": "12", "limit": "three", "deep": True, "unknown": "7"})


def test_schemas_of_a_program_may_be_true_or_leave_out_the_properties():
    """As pydantic writes those of a mapping of anything."""
    anything = {"type": "object", "additionalProperties": True}
    takes = {"ask": {"properties": {"where": anything, "why": True}}, "ls": {"properties": None}}
    said = glm(("ask", {"where": '{"a": null}', "why": "7"}), ("ls", {"all": "7"}))
    asked = ("ask", {"where": {"a": None}, "why": "7"})
    assert [*format_of(glm).calls_in(said, takes)] == [asked, ("ls", {"all": "7"})]


@pytest.mark.parametrize("text", [r'["\ud83d"]', r'[{"\udc00": 1}]'])
def test_a_text_that_spells_half_of_a_surrogate_pair_stays_one(text):
    """No tokenizer accepts that character in the answer of a tool."""
    takes = {"ask": {"properties": {"names": {"type": "array"}}}}
    (call,) = format_of(glm).calls_in(glm(("ask", {"names": text})), takes)
    assert call == ("ask", {"names": text})


def test_a_pattern_may_name_a_name_and_its_arguments():
    form = given_format(r"call:(?P<name>\w+)(?P<arguments>\{.*?\});", None, {})
    assert [*form.calls_in('call:ls{};call:search{"limit": 3};', {})] == [
        ALONE,
        ("search", {"limit": 3}),
    ]


@pytest.mark.parametrize("write", [qwen_coder, glm, deepseek, attributes, named])
def test_a_move_that_repeats_itself_is_read_in_linear_time(write):
    form, whole = format_of(write), write(SEARCH)
    start = whole[: whole.index("search") + len("search")]
    texts = [start * 4000, start + "s" * 60_000, start + "\n" * 60_000, start + whole[:90] * 2000]
    if form.argument is not None:
        text = whole.partition("words")[0] + "words"
        texts += [start + (whole[len(start) : whole.index("a < b")]) * 3000, text * 3000]
    for text in texts:
        begun = time.thread_time()
        [*form.calls_in(text, SCHEMAS), form.is_cut(text)]
        assert time.thread_time() - begun < 0.5
