"""Judges: language or vision-language models that score samples alone, in pairs or in groups.

A policy is trained on the verdict about its own text. So the text is put between fences that the
policy cannot know, and only the last line of the judge's reply is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from statistics import fmean

from torch import Tensor

from tandem.rewards.chat import Chat, Question
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched, groupwise, pairwise, waits
from tandem.rewards.template import (
    SYSTEM,
    Template,
    common,
    content_of,
    fence_of,
    places,
    with_fence,
)
from tandem.types import Prompt

Output = str | Tensor
GAP = r"[*_` \t]{0,6}"  # a judge may use bold
THEN = r"[ \t]{0,2}[>,][ \t]{0,2}"
NUMBER = r"[-+]?[0-9]{1,30}(?:\.[0-9]{1,300})?"
# Whole lines: a longer line may mean something else, such as "Score: 0 to 10? I give 3".
SCORE = re.compile(
    rf"{GAP}(?:final )?score{GAP}:{GAP}({NUMBER}){GAP}(?:/{GAP}({NUMBER}){GAP})?\.?{GAP}", re.I
)
VERDICT = re.compile(rf"{GAP}verdict{GAP}:{GAP}(A|B|tie){GAP}\.?{GAP}", re.I)
RANKING = re.compile(
    rf"{GAP}ranking{GAP}:{GAP}([0-9]{{1,3}}(?:{THEN}[0-9]{{1,3}}){{0,200}}){GAP}\.?{GAP}", re.I
)
WON = {"a": 1.0, "b": 0.0, "tie": 0.5}


@waits
@batched
@places("output", also=("low", "high"))
def single(
    outputs: Sequence[Output],
    prompts: Sequence[Prompt],
    *,
    chat: Chat,  # the judge: its address, its name and limits
    template: Template,  # the question to the judge
    scale: tuple[float, float] = (0.0, 10.0),
) -> list[float | Exception]:
    """The final `Score: x` of the judge for each output, on the scale from worst to best."""
    low, high = scale
    questions = []
    for output, prompt in zip(outputs, prompts, strict=True):
        fence = fence_of([output])
        values = common(prompt) | {"low": [f"{low:g}"], "high": [f"{high:g}"]}
        values["output"] = with_fence(output, fence)
        questions.append((SYSTEM.format(fence=fence), template.fill(values)))
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
    chat: Chat,  # the judge: its address, its name and limits
    template: Template,  # the question to the judge
) -> list[float | Exception]:
    """1 if the judge ends with `Verdict: A` (the first output), 0 with B, 0.5 for a tie."""
    questions = []
    for first, second, prompt in zip(firsts, seconds, prompts, strict=True):
        fence = fence_of([first, second])
        values = common(prompt)
        values |= {"first": with_fence(first, fence), "second": with_fence(second, fence)}
        questions.append((SYSTEM.format(fence=fence), template.fill(values)))
    return read(chat.ask(questions), preference_in)


@waits
@batched
@groupwise
@places("outputs")
def groups(
    outputs: Sequence[Sequence[Output]],
    prompts: Sequence[Prompt],
    *,
    chat: Chat,  # the judge: its address, its name and limits
    template: Template,  # the question to the judge
) -> list[list[float] | list[None] | Exception]:
    """From 1 for the best of a group down to 0, by the judge's final `Ranking: 2 > 1 > 3`.

    The judge sees a group in an order independent of its rows. Equal samples get the mean of their
    places, since the judge must order them too. A single sample gets None.
    """
    orders = [shown_order(group) for group in outputs]
    several = [i for i, group in enumerate(outputs) if len(group) > 1]
    questions = []
    for i in several:
        fence = fence_of(outputs[i])
        shown: Question = []
        for number, row in enumerate(orders[i], start=1):
            shown = [*shown, f"Answer {number}:\n", *with_fence(outputs[i][row], fence), "\n\n"]
        values = common(prompts[i]) | {"outputs": shown}
        questions.append((SYSTEM.format(fence=fence), template.fill(values)))
    said = dict(zip(several, chat.ask(questions), strict=True))
    scores: list[list[float] | list[None] | Exception] = [[None] * len(group) for group in outputs]
    for i, words in said.items():
        [scores[i]] = read([words], lambda words, i=i: ranks_in(words, orders[i], outputs[i]))
    return scores


def read(said: Sequence[str | Exception], meaning: Callable) -> list:
    """The verdict of each reply; an exception stays as it is."""
    return [words if isinstance(words, Exception) else meaning(words) for words in said]


def score_in(words: str, low: float, high: float) -> float | Missing:
    """The score at the end of a judge's reply, or the reason why it is invalid."""
    found = SCORE.fullmatch(last_line(words))
    if found is None:
        return Missing("the judge did not end with `Score: x`")
    score, of = float(found[1]), found[2]
    if of is not None and float(of) != high:
        return Missing(f"the judge gave a score that is not out of {high:g}")
    if not low <= score <= high:
        return Missing(f"the judge gave a score outside {low:g} to {high:g}")
    return score


def preference_in(words: str) -> float | Missing:
    """The value of the verdict at the end of a judge's reply, or the reason why it is invalid."""
    found = VERDICT.fullmatch(last_line(words))
    if found is None:
        return Missing("the judge did not end with `Verdict: A, B or tie`")
    return WON[found[1].lower()]


def ranks_in(words: str, order: Sequence[int], group: Sequence[Output]) -> list[float] | Missing:
    """order: the row of each number that the judge was shown -> the score of each row."""
    found = RANKING.fullmatch(last_line(words))
    ranking = [int(number) for number in re.findall("[0-9]+", found[1])] if found else []
    if sorted(ranking) != list(range(1, len(order) + 1)):
        return Missing("the judge did not end with a `Ranking:` of all answers")
    contents = [content_of(output) for output in group]
    scores: dict[bytes, list[float]] = {}
    for place, number in enumerate(ranking):
        own = scores.setdefault(contents[order[number - 1]], [])
        own.append(1 - place / (len(order) - 1))
    return [fmean(scores[content]) for content in contents]


def last_line(words: str) -> str:
    """The last line that is not empty; lines above may quote the judged text."""
    return words.rstrip().rpartition("\n")[2].strip()


def shown_order(group: Sequence[Output]) -> list[int]:
    """Rows ordered by a hash of their content, since judges favour positions.

    Not secret: every rank and a resumed run use the same order.
    """
    return sorted(
        range(len(group)), key=lambda row: hashlib.sha256(content_of(group[row])).digest()
    )
