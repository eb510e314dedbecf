"""A vision-language model as a judge: the probability of the right answer about a picture."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.hub import find_turn_end, list_ends, locate, read_processor
from tandem.rewards.clip import texts_of
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting, network, read
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched, split_known
from tandem.types import Prompt

KEY = "reward.asked.function.path"
STUB = "stub of an answer"


@batched
@register_reward("asked", judges="pictures")
class Asked:
    """P(answer | picture, question) of a vision-language model, including the end of the answer.

    Both texts may contain the prompt as {text}. VQAScore, arXiv:2404.01291, asks `Does this figure
    show "{text}"? Please answer yes or no.` and takes the probability of `Yes`, without an end.
    """

    judged = "image"  # its type in a chat template

    def __init__(
        self,
        path: str,
        *,
        question: str = "what ?",
        answer: str = "{text}",
        end: bool = True,
        batch_size: int = 64,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        from transformers import AutoConfig, AutoModelForImageTextToText

        self.question, self.answer, self.end = question, answer, end
        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        config = read(AutoConfig, path, KEY)
        self.processor = read_processor(locate(path, key=KEY), config)
        self.tokenizer = self.processor.tokenizer
        self.model = network(AutoModelForImageTextToText, path, KEY, self.hosting)

    def __call__(
        self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]
    ) -> list[float | Missing]:
        known, scores = split_known([self.readable(text) for text in texts_of(prompts)])
        rows = [(outputs[place], text) for place, text in known.items()]
        found = (score for part in self.hosting.parts(rows) for score in self.scores(part))
        for place, score in zip(known, found, strict=True):
            scores[place] = score
        return scores

    def readable(self, text: str) -> str | Missing:
        """The text, or the reason why it cannot be put into a question."""
        held = next((token for token in self.special_tokens if token in text), None)
        if held is None:
            return text
        return Missing(f"the text of its prompt holds {held}, a special token of the judge")

    @cached_property
    def special_tokens(self) -> list[str]:
        """Texts that the tokenizer reads as control tokens or as places of pictures."""
        added = self.tokenizer.added_tokens_decoder.values()
        return [str(token) for token in added if token.special]

    @torch.no_grad()
    def scores(self, rows: Sequence[tuple[Tensor, str]]) -> list[float]:
        """Scores of pictures, uint8 [H, W, 3], for their texts."""
        asked = [self.ask(picture, text) for picture, text in rows]
        answers = [self.answer_ids(text) for _, text in rows]
        given = self.gather(asked, answers)
        lengths = [one["input_ids"].shape[1] for one in asked]
        read = [range(n - 1, n - 1 + len(a)) for n, a in zip(lengths, answers, strict=True)]
        kept = sorted({place for own in read for place in own})
        column = {place: number for number, place in enumerate(kept)}
        logits = self.logits(given, kept)
        found = [logits[row, [column[x] for x in own]] for row, own in enumerate(read)]
        return [*map(probability, found, answers)]

    def gather(
        self, asked: Sequence[dict[str, Tensor]], answers: Sequence[Sequence[int]] | None = None
    ) -> dict[str, Tensor]:
        """The inputs of the rows, padded on the right, on the model's device and in its dtype.

        answers: token ids appended to each row. Texts: [B, longest].
        """
        behind = answers or [()] * len(asked)
        starts = [one["input_ids"].shape[1] for one in asked]
        width = max(n + len(a) for n, a in zip(starts, behind, strict=True))
        given = {name: self.join(name, asked, width) for name in asked[0]}
        for row, (start, answer) in enumerate(zip(starts, behind, strict=True)):
            own = slice(start, start + len(answer))
            given["input_ids"][row, own] = torch.tensor(answer, dtype=torch.int64)
            given["attention_mask"][row, own] = 1
        place, like = self.hosting.place, self.model.dtype
        return {n: x.to(place, like if x.is_floating_point() else None) for n, x in given.items()}

    def logits(self, given: dict[str, Tensor], kept: Sequence[int]) -> Tensor:
        """[B, n, V] only at these positions: at every image token they would take 39 GB."""
        places = torch.tensor(kept, device=self.hosting.place)
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            return self.model(**given, logits_to_keep=places).logits
        return self.model(**given).logits[:, places]

    def ask(self, picture: Tensor, text: str) -> dict[str, Tensor]:
        """The model's input before its answer, one row."""
        from PIL import Image

        image = Image.fromarray(pixels(picture).numpy())
        special = self.template is None  # a template adds them itself
        options = {"return_tensors": "pt", "add_special_tokens": special}
        return dict(self.processor(images=[image], text=[self.put(text)], **options))

    @property
    def template(self) -> str | Mapping[str, str] | None:
        return self.processor.chat_template or self.tokenizer.chat_template

    @property
    def mark(self) -> str:
        """The placeholder token of the judged picture or film."""
        return self.processor.image_token

    def put(self, text: str) -> str:
        """The question in the model's chat template; without one, after the picture or film."""
        question = self.question.format(text=text)
        if self.template is None:
            return f"{self.mark} {question}"
        parts = [{"type": self.judged}, {"type": "text", "text": question}]
        return self.render([{"role": "user", "content": parts}])

    def render(self, turns: Sequence[Mapping[str, object]]) -> str:
        """The template's text of messages, up to the beginning of the answer."""
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
        self.tokenizer.chat_template = self.template  # of several by name it chooses among its own
        return self.tokenizer.apply_chat_template(list(turns), **options)

    @cached_property
    def turn_end(self) -> int | None:
        """The token that ends an answer; None: the model has none."""
        own = self.tokenizer.eos_token_id
        if self.template is None:
            return own
        said = (("user", "stub of a question"), ("assistant", STUB), ("user", "stub of another"))
        try:
            text = self.render(
                [{"role": r, "content": [{"type": "text", "text": x}]} for r, x in said]
            )
        except Exception:  # a template may refuse a second question, in any way, and render one
            return own
        ends = list_ends(self.tokenizer, self.model.generation_config.eos_token_id)
        return find_turn_end(self.tokenizer, text, STUB, ends)

    def answer_ids(self, text: str) -> list[int]:
        """The token ids of the right answer."""
        ids = self.tokenizer(self.answer.format(text=text), add_special_tokens=False)["input_ids"]
        return [*ids, self.turn_end] if self.end else ids

    @staticmethod
    def join(name: str, asked: Sequence[dict[str, Tensor]], width: int) -> Tensor:
        """The input of all rows under a name; texts padded on the right, [B, width]."""
        texts = asked[0][name].shape == asked[0]["input_ids"].shape
        own = [one[name] for one in asked]
        if texts:
            own = [torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in own]
        return torch.cat(own)


def probability(logits: Tensor, answer: Sequence[int]) -> float:
    """The probability of an answer of n tokens from the logits before each, [n, V]."""
    return float(logits.float().log_softmax(-1)[range(len(answer)), answer].sum().exp())
