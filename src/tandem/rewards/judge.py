"""Samples judged by a language model, or by one that sees: by themselves, in pairs, in groups.

What is judged was written by a policy that is paid for what the judge says. So it stands between
fences that the policy cannot know, and the verdict is read from the judge's own words alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import Tensor

from tandem.rewards.asking import batched, groupwise, pairwise, waits
from tandem.rewards.chat import Chat, Question
from tandem.rewards.template import (
    SYSTEM,
    Template,
    common,
    fence_of,
    fenced,
    places,
)
from tandem.rewards.verdicts import Missing
from tandem.types import Prompt

Output = str | Tensor
GAP = r"[*_ \t]{0,4}"  # a judge may write in bold
THEN = r"[ \t]{0,2}[>,][ \t]{0,2}"
SCORE = re.compile(rf"\bscore{GAP}:{GAP}([-+]?\d{{1,6}}(?:\.\d{{1,6}})?)(?!\w)", re.I)
VERDICT = re.compile(rf"\bverdict{GAP}:{GAP}(A|B|tie)\b", re.I)
RANKING = re.compile(rf"\branking{GAP}:{GAP}(\d{{1,3}}(?:{THEN}\d{{1,3}}){{0,200}})", re.I)
WON = {"a": 1.0, "b": 0.0, "tie": 0.5}


@waits
@batched
@places("output", also=("low", "high"))
def single(
    outputs: Sequence[Output],
    prompts: Sequence[Prompt],
    *,
    chat: Chat,
    template: Template,
    scale: tuple[float, float] = (0.0, 10.0),
) -> list[float | Exception]:
    """The last `Score: x` that the judge says of each output, on the scale from worst to best."""
    low, high = scale
    questions = []
    for output, prompt in zip(outputs, prompts, strict=True):
        fence = fence_of([output])
        values = common(prompt) | {"low": [f"{low:g}"], "high": [f"{high:g}"]}
        values["output"] = fenced(output, fence)
        questions.append((SYSTEM.format(fence=fence), template.filled(values)))
    return read(chat.ask(questions), lambda words: score_in(words, low, high))


@waits
@batched
@pairwise(both_orders=True)
@places("first", "second")
def pairs(
    firsts: Sequence[Output],
    seconds: Sequence[Output],
    prompts: Sequence[Prompt],
    *,
    chat: Chat,
    template: Template,
) -> list[float | Exception]:
    """1 where the judge's last `Verdict:` is A, the first; 0 where it is B; 0.5 for a tie."""
    questions = []
    for first, second, prompt in zip(firsts, seconds, prompts, strict=True):
        fence = fence_of([first, second])
        values = common(prompt)
        values |= {"first": fenced(first, fence), "second": fenced(second, fence)}
        questions.append((SYSTEM.format(fence=fence), template.filled(values)))
    return read(chat.ask(questions), preference_in)


@waits
@batched
@groupwise
@places("outputs")
def groups(
    outputs: Sequence[Sequence[Output]],
    prompts: Sequence[Prompt],
    *,
    chat: Chat,
    template: Template,
) -> list[list[float] | list[None] | Exception]:
    """From 1 for the best of a group down to 0, by the judge's last `Ranking: 2 > 1 > 3`.

    The judge sees a group in an order that says nothing of its rows. One alone gets None.
    """
    orders = [shown_order(group) for group in outputs]
    several = [i for i, group in enumerate(outputs) if len(group) > 1]
    questions = []
    for i in several:
        fence = fence_of(outputs[i])
        shown: Question = []
        for number, row in enumerate(orders[i], start=1):
            shown = [*shown, f"Answer {number}:\n", *fenced(outputs[i][row], fence), "\n\n"]
        values = common(prompts[i]) | {"outputs": shown}
        questions.append((SYSTEM.format(fence=fence), template.filled(values)))
    said = dict(zip(several, chat.ask(questions), strict=True))
    scores: list[list[float] | list[None] | Exception] = [[None] * len(group) for group in outputs]
    for i, words in said.items():
        [scores[i]] = read([words], lambda words, i=i: ranks_in(words, orders[i]))
    return scores


def read(said: Sequence[str | Exception], meaning: Callable) -> list:
    """What each reply means; one that never came stays what it is."""
    return [words if isinstance(words, Exception) else meaning(words) for words in said]


def score_in(words: str, low: float, high: float) -> float | Missing:
    found = SCORE.findall(words)
    if not found:
        return Missing("the judge said no `Score: x`")
    if not low <= float(found[-1]) <= high:
        return Missing(f"the judge gave a score outside {low:g} to {high:g}")
    return float(found[-1])


def preference_in(words: str) -> float | Missing:
    found = VERDICT.findall(words)
    return WON[found[-1].lower()] if found else Missing("the judge said no `Verdict: A, B or tie`")


def ranks_in(words: str, order: Sequence[int]) -> list[float] | Missing:
    """order: the row of each number that the judge was shown -> the score of each row."""
    found = RANKING.findall(words)
    ranking = [int(number) for number in re.findall(r"\d+", found[-1])] if found else []
    if sorted(ranking) != list(range(1, len(order) + 1)):
        return Missing("the judge gave no `Ranking:` of all answers")
    scores = [0.0] * len(order)
    for place, number in enumerate(ranking):
        scores[order[number - 1]] = 1 - place / (len(order) - 1)
    return scores


def shown_order(group: Sequence[Output]) -> list[int]:
    """Rows by a hash of what they hold: judges favour places, which must not be those of a row."""
    return sorted(range(len(group)), key=lambda row: fence_of([group[row]]))
