"""The requested text of a picture against the text that an OCR model reads in it: the reward of
Flow-GRPO's text rendering, arXiv:2505.05470."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched, split_known
from tandem.types import Prompt

Reader = Callable[[Sequence[Tensor]], list[str]]  # pictures, uint8 [H, W, 3] -> their texts


@batched
@register_reward("ocr", judges="pictures")
class Ocr:
    """1 - min(edits, n) / n from the text read to the n requested letters, in lower case without
    spaces.

    A text that contains the requested one counts as equal. The requested text is the answer of a
    prompt, or else the part of its text between the first two quotation marks ("); None without
    either. As in Flow-GRPO (flow_grpo/ocr.py), which reads with PaddleOCR.
    """

    def __init__(self, reader: Reader) -> None:
        """`reader`: the OCR model, such as `tandem.rewards.reading.RapidReader`."""
        self.reader = reader

    def __call__(
        self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]
    ) -> list[float | Exception | None]:
        known, scores = split_known([asked_text(prompt) for prompt in prompts])
        judged = self.score([outputs[place] for place in known], [*known.values()])
        for place, score in zip(known, judged, strict=True):
            scores[place] = score
        return scores

    def score(self, pictures: Sequence[Tensor], asked: Sequence[str]) -> list[float | Exception]:
        """The scores for the letters asked, or why a picture has none.

        All are read at once, which some engines do faster; after a failure one by one. Pictures:
        uint8 [H, W, 3].
        """
        try:
            read = zip(self.reader(pictures), asked, strict=True)
            return [similarity(text, letters) for text, letters in read]
        except Exception as error:  # a reader may raise anything
            if len(pictures) == 1:
                return [error]
        return [self.score([one], [own])[0] for one, own in zip(pictures, asked, strict=True)]


def asked_text(prompt: Prompt) -> str | Missing | None:
    """The letters that a picture should show, without spaces and case; None: the prompt names none.

    A single quotation mark is a fault of the prompt.
    """
    if prompt.answer is not None:
        return plain(prompt.answer) or None
    parts = (prompt.text or "").split('"')
    if len(parts) == 2:
        return Missing(f"prompt {prompt.id} of {prompt.source} has an unpaired quotation mark")
    return plain(parts[1]) or None if len(parts) > 2 else None


def plain(text: str) -> str:
    """The text without spaces, in lower case."""
    return text.replace(" ", "").lower()


def similarity(read: str, asked: str) -> float:
    """1 - min(edits, n) / n, or 1 if `read` contains the n plain letters `asked`."""
    found = plain(read)
    edits = 0 if asked in found else edit_distance(found, asked)
    return 1 - min(edits, len(asked)) / len(asked)


def edit_distance(first: str, second: str) -> int:
    """Levenshtein distance: the least number of letters inserted, deleted or replaced."""
    row = [*range(len(second) + 1)]
    for i, letter in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            kept = before + (letter != other)
            before, row[j] = row[j], min(kept, row[j] + 1, row[j - 1] + 1)
    return row[-1]
