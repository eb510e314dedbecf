"""Adapters for rewards written for verl or TRL, which pass arguments by keyword."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from tandem.contracts import declare
from tandem.contracts.spellings import signature_of
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched
from tandem.types import Prompt

VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
# Parameter names for the right answer, if the data has no column of that name.
ANSWERS = ("answer", "ground_truth", "solution")
OF_MESSAGES = ("role", "content", "tool_calls")
OF_TRAINERS = ("completion_ids", "trainer_state", "log_extra", "log_metric")
NUMBERS = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def from_verl(function: Callable) -> Callable:
    """`(data_source, solution_str, ground_truth, extra_info) -> number`, a dict with `score`, or a
    list with the number first, as `(output, prompt, *, numbers) -> number`.

    The solution of an episode is the text of all its moves and of the answers between them. The
    answer of a prompt is the ground truth. Columns of verl's own data, `data_source` and
    `extra_info`, are passed on; else the data source is the prompt's source. All of its fields are
    in the extra info.
    """
    parameters = inspect.signature(function).parameters
    numbers = [one for name, one in parameters.items() if name not in VERL and one.kind in NUMBERS]

    @declare(judges="texts")
    @functools.wraps(function)
    def reward(output: str, prompt: Prompt, **given: object) -> object:
        told = _select_arguments(parameters, _as_verl(output, prompt))
        answer = function(**told, **given)
        return _await_score(answer) if inspect.isawaitable(answer) else _score(answer)

    reward.__signature__ = signature_of(("output", "prompt"), numbers)
    return reward


def from_trl(function: Callable) -> Callable:
    """`(completions, prompts, **columns) -> [number or None]`, of which it takes what it names: as
    `(outputs, prompts, *, numbers) -> [number or None]`. Numbers are its keyword-only parameters.

    Answers to messages are messages too: in an episode all its moves and what was said between
    them, with the `tool_calls` of each move. Columns are the fields of the prompts, and their
    answer.
    Raises ValueError for a parameter that only TRL has.
    """
    parameters = inspect.signature(function).parameters
    numbers = [one for one in parameters.values() if one.kind is Parameter.KEYWORD_ONLY]
    columns = [name for name, one in parameters.items() if one.kind in NUMBERS[1:]]
    if unknown := [n for n in columns if n in OF_TRAINERS and _is_asked(parameters[n])]:
        raise ValueError(
            f"{function.__module__}.{function.__qualname__}: {unknown[0]} exists only in TRL; "
            "take completions, prompts and columns of the data instead"
        )

    @batched
    @declare(judges="texts")
    @functools.wraps(function)
    def reward(outputs: Sequence[str], prompts: Sequence[Prompt], **given: object) -> object:
        told = {
            "prompts": [_question(prompt) for prompt in prompts],
            "completions": [_answer(*pair) for pair in zip(outputs, prompts, strict=True)],
        }
        told = _columns(prompts, columns) | told
        if missing := [n for n in columns if n not in told and _is_asked(parameters[n])]:
            raise Missing(f"needs the column {missing[0]}, but prompts have only {', '.join(told)}")
        return function(**_select_arguments(parameters, told), **given)

    reward.__signature__ = signature_of(("outputs", "prompts"), numbers)
    return reward


def _as_verl(output: str, prompt: Prompt) -> dict[str, Any]:
    """What verl tells a reward of a row."""
    fields = dict(prompt.fields)
    source = prompt.source if fields.get("data_source") is None else fields["data_source"]
    if isinstance(extra := fields.get("extra_info"), Mapping):
        fields |= extra
    answer = _messages(output, prompt)
    if prompt.episode is not None:  # as verl counts: the prompt, the moves and the answers between
        fields["num_turns"] = 2 * sum(one["role"] == "assistant" for one in answer)
    return dict(zip(VERL, (source, _text(answer), prompt.answer, fields), strict=True))


async def _await_score(answer: Awaitable[object]) -> object:
    return _score(await answer)


def _score(answer: object) -> object:
    """The score in a result, as verl reads it."""
    match answer:
        case Mapping():
            return answer["score"]
        case list() | tuple():
            return answer[0]
    return answer


def _question(prompt: Prompt) -> str | list[dict[str, str]]:
    return [dict(one) for one in prompt.messages] if prompt.text is None else prompt.text


def _answer(output: str, prompt: Prompt) -> str | list[dict[str, Any]]:
    answer = _messages(output, prompt)
    return answer if prompt.text is None else _text(answer)


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(one["content"] for one in messages)


def _messages(output: str, prompt: Prompt) -> list[dict[str, Any]]:
    """The answer as messages: of an episode those from its first move to its last."""
    turns = () if prompt.episode is None else prompt.episode["turns"]
    moves = [place for place, one in enumerate(turns) if "turn" in one]
    if not moves:
        return [{"role": "assistant", "content": output}]
    read = turns[moves[0] : moves[-1] + 1]
    return [{name: one[name] for name in OF_MESSAGES if name in one} for one in read]


def _columns(prompts: Sequence[Prompt], named: Sequence[str]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for prompt in prompts for name in prompt.fields)
    columns = {name: [prompt.fields.get(name) for prompt in prompts] for name in names}
    answers = [prompt.answer for prompt in prompts]
    wanted = [name for name in ANSWERS if name == ANSWERS[0] or name in named]
    return dict.fromkeys(wanted, answers) | columns


def _select_arguments(
    parameters: Mapping[str, Parameter], told: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments that a function takes; one with `**columns` takes all."""
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
    return {name: x for name, x in told.items() if takes_all or name in parameters}


def _is_asked(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty
