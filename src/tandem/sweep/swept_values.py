"""Checks of swept values: a value with which no run is valid is refused before any run starts.

Some combinations may be invalid: a value is refused only if every combination in which it is tried
fails. Any other invalid combination is refused by its own process.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from omegaconf import DictConfig

from tandem.config.composition import compose
from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.sweep.swept_numbers import explain_no_number, is_open
from tandem.sweep.words import Sweep

TRIES = 8  # combinations tried per value, each of which takes a third of a second

Lines = tuple[str, ...]
Judge = Callable[[Lines], str | None]  # why a command line is invalid; None: it is valid


def find_one_that_runs(sweep: Sweep, check: Callable[[DictConfig], object]) -> Lines:
    """The command line of a valid run. Raises ConfigError for a value without one, first for one
    that does not compose, since `check` imports heavy libraries."""
    composed = functools.cache(compose)
    values = [f"{key}={value}" for key, values in sweep.swept.items() for value in values]
    for judged in (composed, lambda row: check(composed(row))):
        judge: Judge = functools.cache(functools.partial(_explain_refusal, judged))
        found = [_run_with(value, sweep, judge) for value in values or [""]]
    return next(run for run in found if run is not None)


def _run_with(value: str, sweep: Sweep, judge: Judge) -> Lines | None:
    """A valid command line with this value; None: only swept interpolations make it invalid."""
    rows = [(*sweep.shared, *row) for row in combine(sweep.swept, value)]
    run = next((row for row in rows if judge(row) is None), None)
    if run is None and judge(_drop_words(rows[0], value, sweep)) is not None:
        reason = explain_no_number(rows[0]) or _name_run(value, judge(rows[0]))
        split = _suggest_two_sweeps(value, sweep, judge)
        raise ConfigError(f"{split} ({judge(rows[0])})" if split else reason)
    return run


def _suggest_two_sweeps(value: str, sweep: Sweep, judge: Judge) -> str | None:
    """The two sweeps that run if another swept key fits only other values of this key; else None.
    A search has its folder to itself, so it is not split."""
    if sweep.searches:
        return None
    own = value.partition("=")[0]
    lines = [f"{own}={x}" for x in sweep.swept.get(own, ())]
    having = [line for line in lines if _runs(line, sweep, judge)]
    for key in [x for x in sweep.swept if x != own]:
        without = replace(sweep, swept={k: x for k, x in sweep.swept.items() if k != key})
        others = [line for line in lines if line not in having and _runs(line, without, judge)]
        if having and value in others:
            first, second = (",".join(x.partition("=")[2] for x in y) for y in (having, others))
            return (
                f"{value} runs only without {key}: write two sweeps with one sweep_dir=FOLDER, "
                f"`{own}={first} {key}={','.join(sweep.swept[key])}` and `{own}={second}`"
            )
    return None


def _runs(value: str, sweep: Sweep, judge: Judge) -> bool:
    return any(judge((*sweep.shared, *row)) is None for row in combine(sweep.swept, value))


def _name_run(value: str, reason: str | None) -> str:
    """The reason, after the swept `key=value` unless it names both."""
    words = value.split("=", 1)
    named = all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", f"{reason}") for word in words)
    return f"{reason}" if named else f"{value}: {reason}"


def combine(swept: Mapping[str, Sequence[str]], value: str) -> list[Lines]:
    """Combinations with a value, in which every other value occurs once before any occurs twice.

    Only the first seed is tried: no seed makes a run invalid.
    """
    lines = {key: [f"{key}={x}" for x in values] for key, values in swept.items()}
    own = [[value] if value in x else x[:1] if key == "seed" else x for key, x in lines.items()]
    longest = max(map(len, own), default=1)
    once = (tuple(x[i % len(x)] for x in own) for i in range(min(longest, TRIES)))
    rest = itertools.islice(itertools.product(*own), 2 * TRIES)
    return list(dict.fromkeys([*once, *rest]))[:TRIES]


def _drop_words(row: Lines, value: str, sweep: Sweep) -> Lines:
    """The row without interpolations, unless they are not swept or are the value: those that do
    not resolve beside a value are refused when they are tried themselves."""
    words = {part.input_line for part in parse(row) if is_open(part)}
    swept = words & {*row[len(sweep.shared) :]}
    if not swept or value in swept:
        return row
    return tuple(line for line in row if line not in words)


def _explain_refusal(judged: Callable[[Lines], object], row: Lines) -> str | None:
    try:
        judged(row)
    except ConfigError as error:
        return str(error)
    return None
