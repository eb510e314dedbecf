"""Number guessing: `>` asks for a number from 0 to width - 1, which the environment hilo knows.

All prompts are equal, so a policy can only learn a strategy; the secrets enumerate all games, so
greedy success over them is the exact value of the strategy.
"""

from __future__ import annotations

from tandem import rng
from tandem.contracts import register_dataset
from tandem.data.records import Data, StreamMaker, prompt_id
from tandem.data.stream import PromptStream
from tandem.types import Prompt

QUESTION = ">"
HIGHER, LOWER = "+", "-"
DIGITS = 2


def spell(number: int) -> str:
    """The two digits of a guess."""
    return f"{number:0{DIGITS}}"


@register_dataset(prompts_alone=False, judges="texts")
def hilo(
    *,
    width: int = 16,
    guesses: int = 4,  # guesses per game, at least 1
    demonstrations: int = 4096,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the games in the demonstrations
) -> Data:
    """Every secret is trained on and evaluated, under noise of its own; the demonstrations are
    games in which each guess is drawn from the numbers that are still possible."""
    if not 2 <= width <= 10**DIGITS or guesses < 1:
        raise ValueError(
            f"data.width={width} must be from 2 to {10**DIGITS}, and data.guesses={guesses} at "
            "least 1"
        )
    prompts = tuple(make_prompt(secret, width, guesses) for secret in range(width))
    shown = (
        show_game(number, width=width, guesses=guesses, seed=seed)
        for number in range(demonstrations)
    )
    return Data(
        train=prompts,
        eval=prompts,
        test=prompts,
        demonstrations=tuple(shown),
        curriculum=curriculum,
        asks_again=True,
    )


def make_prompt(secret: int, width: int, guesses: int) -> Prompt:
    """The question, with the fields for the environment."""
    return Prompt(
        id=prompt_id("hilo", width, guesses, secret),
        source=f"hilo_{width}",
        text=QUESTION,
        answer=spell(secret),
        fields={"secret": secret, "width": width, "guesses": guesses},
    )


def show_game(number: int, *, width: int, guesses: int, seed: int) -> Prompt:
    """A game in words: each guess is one of the numbers that are left, all equally likely."""
    secret, *draws = rng.uniform(rng.key(seed, "hilo", number), (1 + guesses,)).tolist()
    secret, low, high = int(secret * width), 0, width - 1
    messages = [{"role": "user", "content": QUESTION}]
    for draw in draws:
        guess = low + int(draw * (high - low + 1))
        messages.append({"role": "assistant", "content": spell(guess)})
        if guess == secret:
            break
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)
        messages.append({"role": "user", "content": HIGHER if guess < secret else LOWER})
    if messages[-1]["role"] == "user":
        messages.pop()
    return Prompt(
        id=prompt_id("hilo", "shown", width, guesses, seed, number),
        source=f"hilo_{width}",
        messages=tuple(messages),
    )
