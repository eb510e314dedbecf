"""Rows of masked answers: built from samples or demonstrations, and shown step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem import rng
from tandem.policies.language.chat import Chat
from tandem.policies.language.sampling import before, pack
from tandem.policies.masked.records import MaskedSample, Trailing
from tandem.policies.masked.unmasking import Unmasked
from tandem.types import Admission, Prompt, Rollout, split_refused

GOLDEN = 0.6180339887498949  # its multiples mod 1 are spread evenly over [0, 1)
HIDDEN, ENDED = "░", "·"  # a hidden position, and one at or after the end of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNoise:
    """Groups of B rows, and the keys of the noise of each row."""

    group: Tensor  # [B] int64
    key: Tensor  # [B] int64
    stratum: Tensor  # [B] int64, shared by the rows whose levels are spread evenly
    place: Tensor  # [B] float64 in [0, 1), the row's position among those


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """Conversion between answers of a fixed number of positions and rows."""

    chat: Chat
    ends: Sequence[int]  # tokens that end an answer
    trailing: Trailing  # treatment of positions after the end

    def rollout(
        self,
        prompts: Sequence[Prompt],
        encoded: Sequence[list[int]],
        answers: Unmasked,
        noise: RowNoise,
        *,
        temperature: float = 1.0,
    ) -> Rollout:
        """A row for each answer."""
        tokens, width = answers.tokens, answers.tokens.shape[1]
        ends = torch.isin(tokens, torch.tensor(self.ends, device=tokens.device))
        ended = ends.any(1)
        length = torch.where(ended, ends.int().argmax(1) + 1, width)
        whole = torch.full_like(length, width)
        packed = pack(encoded, tokens, whole, temperature)
        taken = whole if self.trailing == "counted" else length
        texts = zip(tokens.tolist(), length.tolist(), strict=True)
        return Rollout(
            sample=MaskedSample(
                tokens=packed.tokens,
                prompt_length=packed.prompt_length,
                temperature=packed.temperature,
                when=answers.when,
                answer_length=length,
                key=rng.key(noise.key, "evidence"),
                stratum=noise.stratum,
                place=noise.place,
            ),
            outputs=self.chat.decode([row[:end] for row, end in texts]),
            prompts=tuple(prompts),
            mask=before(taken, width),
            group=noise.group,
            length=length,
            truncated=~ended,
        )

    def encode(
        self, examples: Sequence[Prompt], *, positions: int, key: int, group: Tensor
    ) -> Rollout:
        """Demonstrations padded with end tokens, which are trained with trailing=counted.

        The rows of a slot share levels and masks. `group`: [B] int64.
        """
        texts = [self.chat.answer(example) for example in examples]
        ids = self.chat.encode_answers(texts, examples)
        rows = [row + [self.ends[0]] * (positions - len(row)) for row in ids]
        tokens = torch.tensor(rows, device=group.device)
        nothing = torch.zeros_like(tokens, dtype=torch.float32)
        given = Unmasked(
            tokens=tokens, when=torch.zeros_like(tokens), logp=nothing, entropy=nothing
        )
        noise = RowNoise(
            group=group,
            key=rng.key(key, group),
            stratum=rng.key(key, torch.zeros_like(group)),
            place=(group.remainder(2**20).double() * GOLDEN).frac(),  # ids: 62 bits
        )
        rollout = self.rollout(examples, self.chat.encode(examples), given, noise)
        return replace(rollout, outputs=tuple(texts))

    def admit_answered(self, examples: Sequence[Prompt], positions: int) -> Admission:
        """Demonstrations whose answers fit into the positions, and the others with a reason.

        Raises ValueError for a model without an end token.
        """
        if not self.ends:
            raise ValueError(
                "model: neither the model nor its tokenizer has an end token, which fills the "
                "positions after the answer of a demonstration; set eos_token in "
                "tokenizer_config.json in the folder model.path, for BERT to [SEP]"
            )
        texts = [self.chat.answer(example) for example in examples]
        shown = self.chat.encode_answers(texts, examples)
        said = "has an answer of {} tokens, more than rollout.max_new_tokens={}"
        long = [said.format(len(own), positions) if len(own) > positions else None for own in shown]
        strange = self.chat.faults(texts, shown)
        faults = [one or other for one, other in zip(strange, long, strict=True)]
        return split_refused(examples, faults)

    def describe_steps(self, rollout: Rollout, row: int) -> list[str]:
        """The answer after each step that wrote something, with hidden positions marked."""
        sample = rollout.sample
        start, width = int(sample.prompt_length[row]), sample.when.shape[1]
        tokens = sample.tokens[row, start : start + width].tolist()
        end, when = int(sample.answer_length[row]), sample.when[row].tolist()
        pieces = self.chat.decode([[token] for token in tokens])
        shown = [*pieces[: end - 1], pieces[end - 1] or ENDED, *[ENDED] * (width - end)]
        return [
            "".join(piece if at <= step else HIDDEN for piece, at in zip(shown, when, strict=True))
            for step in sorted({*when})
        ]
