"""Mathematical equality of answers, by the math-verify package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from tandem.contracts import declare, need_extra
from tandem.rewards.signature import batched, waits
from tandem.rewards.workers import Verdict, Workers
from tandem.types import Prompt


@waits
@batched
@declare(judges="texts", reads={"answer"})
class MathVerify:
    """1 if the last answer of the output equals the prompt's, else 0.

    A sample is missing if its prompt has no mathematical answer, or if the check took longer than
    `timeout` seconds: `9**9**9` would never end.
    """

    def __init__(self, *, timeout: float = 5.0, workers: int = 4) -> None:
        if find_spec("math_verify") is None:
            raise ValueError(need_extra("reward=math_verify", "math"))
        self.workers = Workers("math_verify", count=workers, timeout=timeout)

    def __call__(self, outputs: Sequence[str], prompts: Sequence[Prompt]) -> list[Verdict]:
        answers = [prompt.answer for prompt in prompts]
        return self.workers(
            [
                None if answer is None else {"output": output, "answer": answer}
                for output, answer in zip(outputs, answers, strict=True)
            ]
        )
