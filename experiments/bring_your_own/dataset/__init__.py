"""A data set: `data=reversals`."""

from tandem import register_dataset, rng
from tandem.data.records import Data, StreamMaker, prompt_id
from tandem.data.stream import PromptStream
from tandem.types import Prompt


@register_dataset
def reversals(
    *, length: int = 4, count: int = 200, curriculum: StreamMaker = PromptStream, seed: int
) -> Data:
    """Words of random letters, to be answered backwards."""
    letters = (rng.uniform(rng.key(seed, "reversals"), (count, length)) * 10).int().tolist()
    words = sorted({"".join("abcdefghij"[i] for i in row) for row in letters})
    prompts = tuple(
        Prompt(id=prompt_id("reversals", word), source="words", text=f"{word}>", answer=word[::-1])
        for word in words
    )
    return Data(
        train=prompts[20:], eval=prompts[:20], demonstrations=prompts[20:], curriculum=curriculum
    )
