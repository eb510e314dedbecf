"""Token rows as a `Rollout`: of answers that were sampled, and of answers that were given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.policies.language.chat import Chat
from tandem.policies.language.decoding import Answers
from tandem.policies.language.records import TokenSample
from tandem.policies.language.sampling import Sampling
from tandem.types import Prompt, Rollout


def check_room(encoded: Sequence[list[int]], sampling: Sampling, positions: int | None) -> None:
    """Refuse prompts that leave too few positions for an answer; None: there is no limit."""
    longest = max(len(tokens) for tokens in encoded)
    if positions is not None and longest + sampling.max_new_tokens > positions:
        raise ValueError(
            f"a prompt of {longest} tokens and rollout.max_new_tokens={sampling.max_new_tokens} "
            f"pass the {positions} positions of the model; lower rollout.max_new_tokens or "
            "rollout.max_prompt_tokens"
        )


def check_length(sample: TokenSample, positions: int | None) -> None:
    """Refuse answers that pass the positions with their prompts; None: there is no limit."""
    longest = sample.tokens.shape[1]
    if positions is not None and longest > positions:
        raise ValueError(
            f"a demonstration of {longest} tokens passes the {positions} positions of the model; "
            "leave it out of the data"
        )


def sampled(
    prompts: Sequence[Prompt],
    encoded: Sequence[list[int]],
    answers: Answers,
    *,
    chat: Chat,
    group: Tensor,
    temperature: float,
) -> Rollout:
    """One row per answer; as many answers to each prompt as there are rows for it."""
    rows = torch.arange(len(prompts)).repeat_interleave(len(answers.tokens) // len(prompts))
    rows = rows.tolist()
    sample = pack([encoded[i] for i in rows], answers.tokens, answers.length, temperature)
    texts = zip(answers.tokens.tolist(), answers.length.tolist(), strict=True)
    return Rollout(
        sample=sample,
        outputs=chat.decode([tokens[:length] for tokens, length in texts]),
        prompts=tuple(prompts[i] for i in rows),
        mask=before(answers.length, answers.tokens.shape[1]),
        group=group,
        length=answers.length,
        truncated=answers.truncated,
        behaviour_logp=answers.logp,
        entropy=answers.entropy,
    )


def demonstrated(
    examples: Sequence[Prompt], *, chat: Chat, group: Tensor, positions: int | None
) -> Rollout:
    """The answer of each example and the end token, as if they had been sampled."""
    texts = [chat.answer(example) for example in examples]
    answers = chat.encode_answers(texts)
    length = torch.tensor([len(answer) for answer in answers], device=group.device)
    tokens = right_padded(answers, group.device)
    sample = pack(chat.encode(examples), tokens, length, 1.0)
    check_length(sample, positions)
    return Rollout(
        sample=sample,
        outputs=tuple(texts),
        prompts=tuple(examples),
        mask=before(length, tokens.shape[1]),
        group=group,
        length=length,
        truncated=torch.zeros_like(length, dtype=torch.bool),
    )


def pack(
    prompts: Sequence[list[int]], answers: Tensor, length: Tensor, temperature: float
) -> TokenSample:
    """Each prompt and, right behind it, its answer. answers: [B, T], 0 from `length` on."""
    prompt_length = torch.tensor([len(prompt) for prompt in prompts], device=answers.device)
    tokens = right_padded(prompts, answers.device)
    tokens = torch.nn.functional.pad(tokens, (0, answers.shape[1]))
    steps = torch.arange(answers.shape[1], device=answers.device)
    tokens.scatter_(1, prompt_length[:, None] + steps, answers)
    return TokenSample(
        tokens=tokens[:, : int((prompt_length + length).max())].contiguous(),
        prompt_length=prompt_length,
        temperature=torch.full(prompt_length.shape, temperature, device=answers.device),
    )


def right_padded(rows: Sequence[list[int]], device: torch.device) -> Tensor:
    """[B, longest] int64, zeros on the right."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)


def before(length: Tensor, width: int) -> Tensor:
    """True for t < length: [B, width] bool."""
    return torch.arange(width, device=length.device) < length[:, None]
