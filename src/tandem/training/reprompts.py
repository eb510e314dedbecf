"""Re-prompts: prompts of a teacher with additional context. The policy may be its own teacher.

A re-prompt function is (prompt, outputs, scores, *, numbers) -> a prompt for each output, or None
for an output without a teacher. Outputs and scores are those of a group; a missing score is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from tandem.contracts import (
    Facts,
    Wrapper,
    callable_name,
    facts_of,
    pieces,
    register_reprompt,
    register_sampling_strategy,
)
from tandem.contracts.parts import place_of
from tandem.contracts.wrong_output import WrongOutput
from tandem.training.collect import RolloutSource, Slots
from tandem.types import Prompt, Rollout, Scores

Reprompt = Callable[[Prompt, Sequence[str], Sequence[float]], Sequence[Prompt | None]]
Strategy = Callable[[RolloutSource, Slots], tuple[Rollout, Scores]]
Template = Annotated[str, pieces("{prompt}", "{solution}")]
OF_PICTURES = "a teacher of flows reads the prompt of its student; set algorithm=diffusion_opd"
OF_TEXTS = {"steps": OF_PICTURES, "pictures": OF_PICTURES}
SHOWN = "{prompt}\n\nCorrect solution:\n\n{solution}\n\nCorrectly solve the original question.\n"
EXAMPLE = (
    "{prompt}\n\nThis is an example of an answer:\n\n{solution}\n\nAnswer in your own words.\n"
)


# Samples of another strategy, each with the prompt for its teacher (SDPO, SDFT)
@register_sampling_strategy("reprompted", gives={"reprompts"}, refused=OF_TEXTS)
@dataclass(frozen=True, kw_only=True)
class Reprompted(Wrapper):
    """Samples of a strategy, each with the prompt under which a teacher scores it.

    Source: SDPO, arXiv:2601.20802; SDFT, arXiv:2601.19897.
    """

    of: Strategy  # the strategy that samples
    reprompt: Reprompt  # makes the prompt that a teacher reads

    def own_facts(self, declared: Facts) -> Facts:
        inner = facts_of(self.of)
        refused = {**inner.refused, **declared.refused}
        gives = inner.gives | declared.gives
        return replace(inner, option=declared.option, gives=gives, refused=refused)

    def __call__(self, source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
        rollout, scores = self.of(source, prompts)
        return replace(rollout, **self.reprompt_fields(rollout, scores)), scores

    def check(self, said: object, count: int) -> None:
        """Raises WrongOutput unless there is a prompt or None for each of `count` outputs."""
        each = said if isinstance(said, list | tuple) else ()
        kinds = {type(one).__name__ for one in each if not isinstance(one, Prompt | None)}
        if len(each) == count and not kinds:
            return
        returned = f"a {type(said).__name__} of {len(each)}" if each else repr(said)[:40]
        wrong = f" with {', '.join(sorted(kinds))}" if kinds else ""
        raise WrongOutput(
            f"reprompt {callable_name(self.reprompt)} at {place_of(self.reprompt)} returned "
            f"{returned}{wrong} for {count} outputs; return a list with a Prompt or None for each"
        )

    def reprompt_fields(self, rollout: Rollout, scores: Scores) -> dict[str, object]:
        """The teacher prompt of each row, and whether it has one."""
        reprompts: list[Prompt | None] = [None] * len(rollout.prompts)
        total = torch.where(scores.scored, scores.total, torch.nan).tolist()
        for group in rollout.group.unique():
            rows = (rollout.group == group).nonzero()[:, 0].tolist()
            outputs, own = ([values[row] for row in rows] for values in (rollout.outputs, total))
            said = self.reprompt(rollout.prompts[rows[0]], outputs, own)
            self.check(said, len(rows))
            for row, prompt in zip(rows, said, strict=True):
                reprompts[row] = prompt
        taught = [prompt is not None for prompt in reprompts]
        return {
            "reprompts": tuple(reprompts),
            "taught": torch.tensor(taught, device=rollout.mask.device),
        }


# A right answer of another sample of the group (SDPO)
@register_reprompt(compares="group")
def successful_peer(
    prompt: Prompt,
    outputs: Sequence[str],
    scores: Sequence[float],
    *,
    success: float = 0.5,  # lowest score of an answer that is shown
    template: Template = SHOWN,  # text with {prompt} and {solution}
) -> list[Prompt | None]:
    """The next answer of the group, cyclically, that scored `success` or more, excluding the
    sample itself; None if there is none.

    Source: SDPO, arXiv:2601.20802, without its environment feedback.
    """
    right = [place for place, score in enumerate(scores) if score >= success]
    shown: list[Prompt | None] = []
    for own in range(len(outputs)):
        others = [place for place in right if place != own]
        peer = next((place for place in others if place > own), others[0] if others else None)
        shown.append(None if peer is None else with_solution(prompt, outputs[peer], template))
    return shown


# The demonstration that comes with the prompt (SDFT, OPSD)
@register_reprompt
def demonstration(
    prompt: Prompt,
    outputs: Sequence[str],
    scores: Sequence[float],
    *,
    template: Template = EXAMPLE,  # text with {prompt} and {solution}
) -> list[Prompt | None]:
    """The prompt with the answer in the data, put together by `template`, which holds {prompt} and
    {solution}; None for a prompt without an answer.

    Source: SDFT, arXiv:2601.19897; OPSD, arXiv:2601.18734.
    """
    shown = prompt.shown_answer
    told = None if shown is None else with_solution(prompt, shown, template)
    return [told] * len(outputs)


def with_solution(prompt: Prompt, solution: str, template: str) -> Prompt:
    """The prompt with the template applied to its text or last turn."""

    def fill(text: str) -> str:
        parts = template.split("{prompt}")
        return text.join(part.replace("{solution}", solution) for part in parts)

    if prompt.text is not None:
        return replace(prompt, text=fill(prompt.text))
    turns = [dict(turn) for turn in prompt.messages]
    if turns[-1]["role"] == "assistant":
        turns.pop()
    turns[-1]["content"] = fill(turns[-1]["content"])
    return replace(prompt, messages=tuple(turns))
