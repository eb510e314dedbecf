"""GenEval 2, arXiv:2512.16853: the probability that a vision-language model gives the expected
answers to the questions of a row (Soft-TIFA)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.asked import Asked
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched, split_known
from tandem.types import Prompt

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DIGITS = {word: str(number) for number, word in enumerate(WORDS, 1)}
Rule = Callable[[Sequence[float]], float]


def geometric(chances: Sequence[float]) -> float:
    """(p_1 ... p_n)^(1/n): the score of the whole prompt (Soft-TIFA GM)."""
    return math.prod(chances) ** (1 / len(chances))


def arithmetic(chances: Sequence[float]) -> float:
    """The mean of p: the score of its parts (Soft-TIFA AM)."""
    return math.fsum(chances) / len(chances)


@batched
@register_reward("geneval2", judges="pictures")
class GenEval2(Asked):
    """`rule` applied to the probabilities that the first word of each answer is right, 0 to 1.

    A row has the questions of its prompt in `vqa_list`: pairs of a question and its answer. A
    number counts as a word or a digit; the answer to every other question is yes. None for a prompt
    without them.
    """

    def __init__(
        self,
        path: str,
        *,
        rule: Rule = geometric,  # score of the probabilities that the answers are right
        # The question to the model; {text} is one of the row's.
        question: str = "{text} Answer in one word.",
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`batch_size`: questions per forward pass."""
        super().__init__(path, question=question, batch_size=batch_size, dtype=dtype, device=device)
        self.rule = rule

    def __call__(
        self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]
    ) -> list[float | Missing | None]:
        known, scores = split_known([self.readable_questions(prompt) for prompt in prompts])
        rows = [(outputs[place], *pair) for place, own in known.items() for pair in own]
        chances = iter([x for part in self.hosting.parts(rows) for x in self.chances(part)])
        for place, own in known.items():
            scores[place] = self.rule([next(chances) for _ in own])
        return scores

    def readable_questions(self, prompt: Prompt) -> list[tuple[str, str]] | Missing | None:
        """The pairs of `questions_of`, or the reason why one of them cannot be asked."""
        pairs = questions_of(prompt)
        questions = [question for question, _ in pairs] if isinstance(pairs, list) else []
        read = map(self.readable, questions)
        return next((x for x in read if isinstance(x, Missing)), pairs)

    @torch.no_grad()
    def chances(self, rows: Sequence[tuple[Tensor, str, str]]) -> list[float]:
        """Probabilities of the answers to questions about pictures, uint8 [H, W, 3]."""
        asked = [self.ask(picture, question) for picture, question, _ in rows]
        ends = [one["input_ids"].shape[1] - 1 for one in asked]
        given = self.gather(asked)
        kept = sorted(set(ends))
        logits = self.logits(given, kept).float()
        first = [logits[row, kept.index(end)].softmax(-1) for row, end in enumerate(ends)]
        words = [self.first_tokens(question, answer) for _, question, answer in rows]
        return [float(x[own].sum()) for x, own in zip(first, words, strict=True)]

    def first_tokens(self, question: str, answer: str) -> list[int]:
        """The possible first tokens of a right answer."""
        words = spellings(question, answer)
        ids = [self.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
        return [*dict.fromkeys(ids)]


def spellings(question: str, answer: str) -> list[str]:
    """The words that count as the answer to a question."""
    if not question.startswith("How many"):
        return ["Yes", "yes", " yes", " Yes"]
    words = [answer, answer.capitalize()]
    words += [DIGITS[answer]] if answer in DIGITS else []
    return [*words, *(f" {word}" for word in words)]


def questions_of(prompt: Prompt) -> list[tuple[str, str]] | Missing | None:
    """Pairs of question and answer; None: the row has none."""
    given = prompt.fields.get("vqa_list")
    if given is None:
        return None
    pairs = [tuple(pair) for pair in given if isinstance(pair, Sequence)]
    right = all(len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in pairs)
    if not pairs or len(pairs) != len(given) or not right:
        return Missing("has a vqa_list that is not a list of [question, answer] pairs")
    return pairs
