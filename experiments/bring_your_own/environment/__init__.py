"""An environment: `environment=tries`, with `reward=episode`."""

from collections.abc import Sequence

from tandem import register_environment
from tandem.environments import Move, Said
from tandem.types import Prompt


@register_environment
def tries(prompt: Prompt, moves: Sequence[Move], *, most: int = 3) -> Said:
    """Up to `most` answers to a question: `+` if one is too short, `-` if it is wrong."""
    if not moves:
        return Said()  # before the first move there is only the prompt
    answer = moves[-1].text.strip()
    if answer == prompt.answer:
        return Said(reward=1 / len(moves), over=True)
    hint = "+" if len(answer) < len(prompt.answer) else "-"
    return Said.text(hint, over=len(moves) == most, state=hint)
