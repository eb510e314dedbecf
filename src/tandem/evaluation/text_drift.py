"""Measures of text drift: the change of answers, and when it makes a rising reward suspect.

Each is between 0 and 1 for an answer; evaluations average them over the held-out prompts.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated

from tandem.contracts import at_least, positive
from tandem.evaluation.image_collapse import compare_both, describe_ends, describe_suspicion

# A word, or a single character; scripts without spaces are read by character.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")
GRAM = 3  # characters, for the distance of two texts
TEXT_MEASURES = ("repetition", "other_script", "format_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Limits on the drift of answers, beyond which a rising reward is suspect.

    None: the measure is ignored.
    """

    # Increase of the share of repeated n-grams that warns; null: never.
    repetition: Annotated[float, at_least(0)] | None = 0.2
    # Increase of the share of letters of other scripts that warns; null: never.
    other_script: Annotated[float, at_least(0)] | None = 0.1
    # Increase of the share of format characters that warns; null: never.
    format_share: Annotated[float, at_least(0)] | None = 0.3
    # Factor of the length, longer or shorter, that warns; null: never.
    length: Annotated[float, at_least(1)] | None = 4.0
    n: Annotated[int, positive] = 4  # words of an n-gram
    # Markers of the template around an answer.
    markers: tuple[str, ...] = ("<think>", "</think>", "<answer>", "</answer>", "\\boxed{")

    def measure(self, output: str, asked: str) -> dict[str, float]:
        """The measures of an answer to a prompt text."""
        return {
            "repetition": repetition(output, n=self.n),
            "other_script": other_script(output, asked),
            "format_share": format_share(output, self.markers),
        }

    def warning(self, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
        """The warning about an evaluation relative to the first of the run; None: no suspicion."""
        signs = self.signs(first, now)
        said = "answers drifted", "read the samples", "evaluation.drift"
        return describe_suspicion(first, now, signs, said=said)

    def signs(self, first: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
        """Sentences on the measures beyond their limits."""
        found = []
        for name in TEXT_MEASURES:
            limit, ends = asdict(self)[name], compare_both(f"eval/{name}", first, now)
            if None not in (limit, ends) and ends[1] - ends[0] > limit:
                found.append(describe_ends(name, ends))
        ends = compare_both("eval/length", first, now)
        if None not in (self.length, ends) and max(ends) > self.length * min(ends) > 0:
            found.append(describe_ends("length", ends))
        return found


def repetition(text: str, *, n: int) -> float:
    """Share of repeated word n-grams in an answer: 1 - distinct / all."""
    words = WORD.findall(text)
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1 - len({*grams}) / len(grams) if grams else 0.0


def other_script(text: str, asked: str) -> float:
    """Share of the letters of an answer in scripts that the prompt does not use; 0 for a prompt
    without letters."""
    letters = [script_of(sign) for sign in text if sign.isalpha()]
    known = {script_of(sign) for sign in asked if sign.isalpha()}
    if not letters or not known:
        return 0.0
    return sum(script not in known for script in letters) / len(letters)


@lru_cache(maxsize=4096)
def script_of(letter: str) -> str:
    """The first word of a letter's Unicode name, such as LATIN, CYRILLIC or CJK."""
    return unicodedata.name(letter, "UNKNOWN").partition(" ")[0]


def format_share(text: str, markers: tuple[str, ...]) -> float:
    """Share of the characters of an answer that belong to template markers."""
    held = sum(text.count(marker) * len(marker) for marker in markers)
    return held / len(text) if text else 0.0


def text_distance(text: str, other: str) -> float:
    """1 minus the share of common character trigrams: 0 for equal texts, 1 if none are shared."""
    own, its = trigrams(text), trigrams(other)
    return 1 - (own & its).total() / max(own.total(), its.total())


def trigrams(text: str) -> Counter[str]:
    padded = f"{' ' * (GRAM - 1)}{text}{' ' * (GRAM - 1)}"
    return Counter(padded[i : i + GRAM] for i in range(len(padded) - GRAM + 1))


def mean_distance(before: Mapping[object, str], now: Mapping[object, str]) -> float | None:
    """The mean over answers with the same name in both; None without any."""
    both = before.keys() & now.keys()
    return math.fsum(text_distance(before[k], now[k]) for k in both) / len(both) if both else None
