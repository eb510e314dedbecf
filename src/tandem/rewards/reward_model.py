"""A reward model of text: a network that has learnt which answers people prefer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from tandem.contracts import register_reward
from tandem.rewards.networks import Hosting, network, read, tokenizer
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched
from tandem.types import Prompt

KEY = "reward.reward_model.function.path"


@batched
@register_reward("reward_model", judges="texts")
class RewardModel:
    """The number that a transformers sequence classifier of one label gives to prompt and answer.

    They go through its own chat template, the answer as the assistant's last turn, as TRL trains
    such models and Skywork-Reward is used. A prompt that is a text is the user's; without a
    template it stands before the answer as it is. What is longer than `max_tokens`, or than the
    model can read, is missing: a score of the beginning would be another one.
    """

    def __init__(
        self,
        path: str,
        *,
        max_tokens: int | None = None,
        batch_size: int = 8,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = read(AutoConfig, path, KEY)
        if config.num_labels != 1:
            raise ValueError(
                f"{KEY}={path} gives {config.num_labels} numbers, but a reward is one: use a "
                "model for sequence classification with num_labels=1"
            )
        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.tokenizer = tokenizer(path, KEY)
        self.model = network(AutoModelForSequenceClassification, path, KEY, self.hosting)
        self.padding = config.get_text_config().pad_token_id
        held = getattr(config.get_text_config(), "max_position_embeddings", None)
        self.limit = min((n for n in (max_tokens, held) if n is not None), default=None)

    def __call__(self, outputs: Sequence[str], prompts: Sequence[Prompt]) -> list[float | Missing]:
        rows = [self._tokens(*pair) for pair in zip(outputs, prompts, strict=True)]
        scores: list[float | Missing] = [row if isinstance(row, Missing) else 0.0 for row in rows]
        known = [i for i, row in enumerate(rows) if not isinstance(row, Missing)]
        known.sort(key=lambda i: len(rows[i]))  # so that little is padding
        for part in self.hosting.parts(known):
            for i, score in zip(part, self._scores([rows[i] for i in part]), strict=True):
                scores[i] = score
        return scores

    def _tokens(self, output: str, prompt: Prompt) -> list[int] | Missing:
        from jinja2 import TemplateError

        try:
            tokens = self._encoded(output, prompt)
        except TemplateError as error:  # templates raise it: wrong roles, no system prompt
            return Missing(f"is refused by the chat template: {str(error)[:80]}")
        if not tokens:
            return Missing("is empty")
        if self.limit is not None and len(tokens) > self.limit:
            return Missing(f"is longer than {self.limit} tokens with its prompt")
        return tokens

    def _encoded(self, output: str, prompt: Prompt) -> list[int]:
        if self.tokenizer.chat_template is not None:
            turns = [*question(prompt), {"role": "assistant", "content": output}]
            text = self.tokenizer.apply_chat_template(turns, tokenize=False)
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if prompt.text is None:
            raise ValueError(f"a chat needs a chat template, but {KEY} has none")
        return self.tokenizer(prompt.text + output)["input_ids"]

    @torch.no_grad()
    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Padded on the right, where nothing that counts looks."""
        longest, device = max(map(len, rows)), self.model.device
        mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows], device=device)
        pad = self._padding({row[-1] for row in rows})
        ids = [[*row, *[pad] * (longest - len(row))] for row in rows]
        out = self.model(input_ids=torch.tensor(ids, device=device), attention_mask=mask)
        return out.logits.float()[:, 0].tolist()

    def _padding(self, last: set[int]) -> int:
        """The token that the model was published with. It reads its number off the last token that
        is another one; where it knows no padding, off the last, so that one has to differ."""
        if self.padding is not None:
            return self.padding
        pad = next(token for token in range(len(last) + 1) if token not in last)
        self.model.config.get_text_config().pad_token_id = pad
        return pad


def question(prompt: Prompt) -> list[dict[str, str]]:
    """The turns before the answer."""
    if prompt.messages is None:
        return [{"role": "user", "content": prompt.text}]
    turns = [dict(message) for message in prompt.messages]
    return turns[:-1] if turns[-1]["role"] == "assistant" else turns
