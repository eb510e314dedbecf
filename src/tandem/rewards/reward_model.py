"""A reward model of text: a network trained on human preferences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from tandem.contracts import register_reward
from tandem.rewards.networks import Hosting, network, read, tokenizer
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched, split_known
from tandem.types import Prompt

KEY = "reward.reward_model.function.path"


@batched
@register_reward("reward_model", judges="texts")
class RewardModel:
    """The score of a transformers sequence classifier with one label for prompt and answer.

    Both go through its chat template, the answer as the last assistant turn, as in TRL and
    Skywork-Reward. A text prompt is a user turn; without a template it is put before the answer. A
    sample longer than `max_tokens`, or than the model supports, is missing: truncation would change
    its score.
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
        known, scores = split_known(rows)
        by_length = sorted(known, key=lambda i: len(rows[i]))  # minimises padding
        for part in self.hosting.parts(by_length):
            for i, score in zip(part, self._scores([rows[i] for i in part]), strict=True):
                scores[i] = score
        return scores

    def _tokens(self, output: str, prompt: Prompt) -> list[int] | Missing:
        text = self._text(output, prompt)
        if isinstance(text, Missing):
            return text
        # A template writes its own special tokens.
        plain = self.tokenizer.chat_template is None
        try:
            tokens = self.tokenizer(text, add_special_tokens=plain)["input_ids"]
        except (TypeError, ValueError) as error:  # a text without UTF-8: half of a surrogate pair
            return explain_refusal("the tokenizer", error)
        if not tokens:
            return Missing("is empty")
        if self.limit is not None and len(tokens) > self.limit:
            return Missing(f"is longer than {self.limit} tokens with its prompt")
        return tokens

    def _text(self, output: str, prompt: Prompt) -> str | Missing:
        if self.tokenizer.chat_template is None:
            if prompt.text is None:
                return Missing(f"is of a chat, but {KEY} has no chat template")
            return prompt.text + output
        turns = [*question(prompt), {"role": "assistant", "content": output}]
        try:
            return self.tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception as error:  # a template is a program of others and may raise anything
            return explain_refusal("the chat template", error)

    @torch.no_grad()
    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Scores of rows padded on the right, which causal attention ignores."""
        longest, device = max(map(len, rows)), self.model.device
        mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows], device=device)
        pad = self._padding({row[-1] for row in rows})
        ids = [[*row, *[pad] * (longest - len(row))] for row in rows]
        out = self.model(input_ids=torch.tensor(ids, device=device), attention_mask=mask)
        return out.logits.float()[:, 0].tolist()

    def _padding(self, last: set[int]) -> int:
        """The padding token of the model, which scores the last token that differs from it. Without
        one the model scores the last token, so the padding must differ from that."""
        if self.padding is not None:
            return self.padding
        pad = next(token for token in range(len(last) + 1) if token not in last)
        self.model.config.get_text_config().pad_token_id = pad
        return pad


def explain_refusal(part: str, error: Exception) -> Missing:
    return Missing(f"is refused by {part}: {' '.join(str(error).split())[:80]}")


def question(prompt: Prompt) -> list[dict[str, str]]:
    """The turns before the answer."""
    if prompt.messages is None:
        return [{"role": "user", "content": prompt.text}]
    turns = [dict(message) for message in prompt.messages]
    return turns[:-1] if turns[-1]["role"] == "assistant" else turns
