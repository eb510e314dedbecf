"""Checks of a world's answers: a record, or the reason why an answer is invalid."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tandem.environments.protocol import PROMPT_ROLES, ROLES, About, Said
from tandem.rewards.result import NOT_HERE, THERE, Missing, describe, number_of
from tandem.types import IMAGE, Picture


def check_answer(said: Said, call: str, about: About, begun: Collection[int]) -> Said:
    """A world's answer as a checked record. Raises Missing for an invalid one.

    begun: the conversations begun so far.
    """
    if (wrong := complaint(said, about, begun)) is not None:
        raise Missing(f"{call} {wrong}")
    if call == "begin" and (said.over or said.reward):
        raise Missing("begin gave an end or a reward before any move")
    return replace(
        said,
        messages=tuple(map(dict, said.messages)),
        reward=None if said.reward is None else number_of(said.reward)[0],
        over=bool(said.over),
        counts={name: number_of(count)[0] for name, count in said.counts.items()},
    )


def complaint(said: object, about: About, begun: Collection[int]) -> str | None:
    """The fault of a world's answer, in words; None: it has none."""
    if not isinstance(said, Said):
        return f"gave {type(said).__name__}, not Said"
    if not isinstance(said.over, bool | np.bool_):
        return f"gave over={said.over!r:.40}, not True or False"
    if said.state is not None and not _is_text(said.state):
        return f"gave a state of type {type(said.state).__name__}, not text"
    if said.reward is not None and not _is_number(said.reward):
        return f"gave reward={said.reward!r:.40}, not a finite number up to 1e18"
    if not all(isinstance(tool, Mapping) for tool in said.tools):
        return "gave tools that are not schemas"
    if not isinstance(said.context, int) or said.context < 0:
        return f"gave a context of type {type(said.context).__name__}, not an integer of at least 0"
    return (
        _wrong_with_counts(said.counts)
        or _wrong_with_calls(said.tool_calls)
        or _wrong_with_messages(said, about, begun)
    )


def _wrong_with_counts(counts: object) -> str | None:
    if not isinstance(counts, Mapping):
        return f"gave counts of type {type(counts).__name__}, not a mapping"
    if not all(isinstance(name, str) and _is_number(x) for name, x in counts.items()):
        return "gave counts that do not map names to finite numbers"
    return None


def _wrong_with_calls(calls: object) -> str | None:
    if not isinstance(calls, list | tuple) or not all(isinstance(one, Mapping) for one in calls):
        return "gave tool_calls that are no list of mappings"
    try:
        json.dumps(calls)
    except (TypeError, ValueError, RecursionError):
        return "gave tool_calls that JSON cannot say"
    return None


def _wrong_with_messages(said: Said, about: About, begun: Collection[int]) -> str | None:
    if not isinstance(said.messages, list | tuple):
        return f"gave messages of type {type(said.messages).__name__}, not a list"
    is_whole = said.context not in begun
    if is_whole and begun and not about.writes_prompt:
        return "began another conversation, which needs About.writes_prompt"
    if (said.images or about.shows) and (wrong := _wrong_with_images(said, about)) is not None:
        return wrong
    roles = PROMPT_ROLES if is_whole and about.writes_prompt else ROLES
    return next((wrong for message in said.messages if (wrong := _unfit(message, roles))), None)


def _wrong_with_images(said: Said, about: About) -> str | None:
    if not about.shows:
        return "gave pictures, but declares that it shows none (About.shows)"
    if not all(isinstance(one, Picture) for one in said.images):
        return "gave images that are not of tandem.types.Picture"
    marks = sum(str(one.get("content")).count(IMAGE) for one in said.messages)
    if marks != len(said.images):
        return f"gave {len(said.images)} pictures for {marks} markers {IMAGE} in its messages"
    return None


def _is_number(value: object) -> bool:
    return number_of(value)[0] is not None


def _is_text(value: object) -> bool:
    """Whether a value is text that can be encoded: an unpaired surrogate cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unfit(message: object, roles: Sequence[str]) -> str | None:
    if not isinstance(message, Mapping) or not _is_text(message.get("content")):
        return "gave a message that does not map role and content to text"
    if message.get("role") not in roles:
        return f"gave a message of role {message.get('role')!r:.40}; a world is a user or a tool"
    return None


def reason_of(call: str, error: BaseException, seconds: float | None) -> str:
    """The reason why an episode is lost."""
    match error:
        case TimeoutError() if not str(error) and seconds is not None:
            return f"{call} took over {seconds:g} s (environment.timeout)"
        case Missing():
            return str(error)
    reason = f"{call} raised {describe(error)}"
    return f"{reason}; environment.{THERE}" if NOT_HERE in reason else reason
