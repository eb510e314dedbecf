"""Products that a small model cannot compute by itself, and demonstrations that sometimes call a
calculator: `data=products`."""

from __future__ import annotations

from tandem import register_dataset, rng
from tandem.data.records import Data, StreamMaker, prompt_id
from tandem.data.stream import PromptStream
from tandem.types import Prompt


@register_dataset
def products(
    *,
    called: float = 0.3,
    prompts: int = 4000,
    held_out: int = 64,
    demonstrations: int = 4096,
    curriculum: StreamMaker = PromptStream,
    seed: int,
) -> Data:
    """`23*457>` asks for a product of two and three digits. Demonstrations have other factors; a
    share `called` of them writes `(23*457)` and reads the answer, the others state it directly."""
    asked = [question(number, kind="asked", seed=seed) for number in range(2 * held_out + prompts)]
    held = {prompt.text for prompt in asked[: 2 * held_out]}
    shown = [question(number, kind="shown", seed=seed) for number in range(demonstrations)]
    calls = rng.uniform(rng.key(seed, "calls"), (demonstrations,)) < called
    return Data(
        train=tuple(prompt for prompt in asked[2 * held_out :] if prompt.text not in held),
        eval=tuple(asked[:held_out]),
        test=tuple(asked[held_out : 2 * held_out]),
        demonstrations=tuple(
            with_call(prompt) if call else prompt
            for prompt, call in zip(shown, calls.tolist(), strict=True)
            if prompt.text not in held
        ),
        curriculum=curriculum,
    )


def question(number: int, *, kind: str, seed: int) -> Prompt:
    """Two factors, determined by the number."""
    one, other = rng.uniform(rng.key(seed, "products", kind, number), (2,)).tolist()
    two_digits, three_digits = 10 + int(one * 90), 100 + int(other * 900)
    return Prompt(
        id=prompt_id("products", kind, seed, number),
        source="products",
        text=f"{two_digits}*{three_digits}>",
        answer=str(two_digits * three_digits),
    )


def with_call(prompt: Prompt) -> Prompt:
    """The same, solved by the calculator: a call, its result, and the answer."""
    messages = (
        {"role": "user", "content": prompt.text},
        {"role": "assistant", "content": f"({prompt.text[:-1]})"},
        {"role": "tool", "content": prompt.answer},
    )
    return Prompt(id=prompt.id, source=prompt.source, messages=messages, answer=prompt.answer)
