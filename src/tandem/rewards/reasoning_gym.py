"""The score that a task of the reasoning-gym package gives an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

from tandem.contracts import declare, need_extra
from tandem.rewards.signature import batched, waits
from tandem.rewards.workers import Verdict, Workers
from tandem.types import Prompt

TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


@waits
@batched
@declare(judges="texts")
class ReasoningGym:
    """Between 0 and 1, for prompts that `data=reasoning_gym` made; others are missing.

    The answer is what stands in the last <answer>...</answer>, or else the whole output.
    Several tasks evaluate an answer as Python, so they do it in processes where a name that is not
    mathematics ends the attempt. Such an answer scores as a wrong one does, and so does one on
    which the task's scorer raises, as it may for a format that it does not expect.
    """

    def __init__(self, *, timeout: float = 5.0, workers: int = 2) -> None:
        if find_spec("reasoning_gym") is None:
            raise ValueError(need_extra("reward=reasoning_gym", "reasoning-gym"))
        self.workers = Workers("reasoning_gym", count=workers, timeout=timeout)

    def __call__(self, outputs: Sequence[str], prompts: Sequence[Prompt]) -> list[Verdict]:
        tasks = [prompt.fields.get("reasoning_gym") for prompt in prompts]
        return self.workers(
            [
                None if task is None else {**task, "output": answer_of(output)}
                for output, task in zip(outputs, tasks, strict=True)
            ]
        )


def answer_of(output: str) -> str:
    """The text of the last answer tag, or else the whole output."""
    tagged = TAGGED.findall(output)
    return (tagged[-1] if tagged else output).strip()
