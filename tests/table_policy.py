"""A policy that is a table of next-token logits, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.losses.divergence import jsd
from tandem.policies.base import Policy
from tandem.policies.language.records import Sampling
from tandem.types import Evidence, Prompt, Rollout, pad_steps, taught_steps

STOP = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSample:
    tokens: Tensor  # [B, T] the sampled tokens
    before: Tensor  # [B, T] the token before each


class TablePolicy(Policy):
    """Token 0 ends a sample; a prompt is its id, which precedes the first token."""

    exact = True

    def __init__(
        self,
        vocab: int = 6,
        steps: int = 5,
        dtype: torch.dtype = torch.float64,
        *,
        critic: bool = False,
    ) -> None:
        super().__init__()
        noise = rng.normal(rng.key("table"), (vocab, vocab)).to(dtype)
        self.table = nn.Parameter(0.5 * noise)
        # Values by the previous token; without a critic they are not trained.
        self.values = nn.Parameter(torch.zeros(vocab, dtype=dtype), requires_grad=critic)
        self.register_buffer("reference", 0.3 * noise.flip(0))
        self.register_buffer("teacher", 0.8 * noise.roll(1, dims=1))
        self.vocab, self.steps = vocab, steps
        self.sampling = Sampling(max_new_tokens=steps)
        self.rows_seen: list[int] = []

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: Sampling | None = None,
    ) -> Rollout:
        temperature = (sampling or self.sampling).temperature
        group = torch.tensor(list(slots)).repeat_interleave(group_size)
        rows = rng.key(key, group, torch.arange(group_size).repeat(len(prompts)))
        last = torch.tensor([p.id % self.vocab for p in prompts]).repeat_interleave(group_size)
        tokens, before = [], []
        for step in range(self.steps):
            noise = rng.gumbel(rng.at(rng.key(rows, step)[:, None], torch.arange(self.vocab)))
            before.append(last)
            last = (self.table[last] + temperature * noise).argmax(1)
            tokens.append(last)
        sample = TableSample(tokens=torch.stack(tokens, 1), before=torch.stack(before, 1))
        owners = tuple(p for p in prompts for _ in range(group_size))
        return replace(self.rollout(sample, group, owners), key=rows)

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        answers = [[int(letter) for letter in p.answer] for p in examples]
        tokens = torch.cat([pad_steps(torch.tensor([a]), self.steps) for a in answers])
        first = torch.tensor([[p.id % self.vocab] for p in examples])
        sample = TableSample(tokens=tokens, before=torch.cat([first, tokens[:, :-1]], 1))
        return replace(
            self.rollout(sample, torch.tensor(list(slots)), tuple(examples)), behaviour_logp=None
        )

    def rollout(self, sample: TableSample, group: Tensor, prompts: tuple[Prompt, ...]) -> Rollout:
        ended = (sample.tokens == STOP).cumsum(1)
        mask = ended - (sample.tokens == STOP).long() == 0
        logp = torch.where(mask, self.logp_under(sample, self.table.detach()), 0)
        outputs = tuple(
            "".join(str(t) for t in row[keep].tolist())
            for row, keep in zip(sample.tokens, mask, strict=True)
        )
        return Rollout(
            sample=sample, outputs=outputs, prompts=prompts, mask=mask, group=group,
            length=mask.sum(1), truncated=ended[:, -1] == 0, behaviour_logp=logp,
        )  # fmt: skip

    def logp_under(self, sample: TableSample, table: Tensor) -> Tensor:
        return table[sample.before].log_softmax(-1).gather(-1, sample.tokens[..., None])[..., 0]

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        known = {}
        if "old_kl_to_ref" in needs:
            needs = needs | {"old_logp", "ref_logp"}
        if "old_logp" in needs:
            known["old_logp"] = self.logp_under(rollout.sample, self.table.detach())
        if "ref_logp" in needs:
            known["ref_logp"] = self.logp_under(rollout.sample, self.reference)
        if "teacher_logp" in needs:
            known["teacher_logp"] = self.logp_under(rollout.sample, self.teacher)
        if "old_values" in needs:
            known["old_values"] = self.values.detach()[rollout.sample.before]
        if "sum_pi_squared" in needs:
            probability = self.table.detach().softmax(-1)
            known["sum_pi_squared"] = probability.square().sum(-1)[rollout.sample.before]
        if "turn" in needs:  # a move is two tokens; its state is the token before it
            turns = 1 + torch.arange(self.steps) // 2
            known["turn"] = torch.where(rollout.mask, turns[: rollout.mask.shape[1]], 0)
            begun = 1 + rollout.sample.before[:, ::2].repeat_interleave(2, 1)
            begun = begun[:, : rollout.mask.shape[1]]
            known["state"] = torch.where(rollout.mask, begun, 0)
        if "old_kl_to_ref" in needs:
            known["old_kl_to_ref"] = known["old_logp"] - known["ref_logp"]
        return replace(rollout, **known)

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        self.rows_seen.append(len(rollout.mask))
        steps = rollout.mask.shape[1]
        logits = self.table[rollout.sample.before[:, :steps]].log_softmax(-1)
        logp = logits.gather(-1, rollout.sample.tokens[:, :steps, None])[..., 0]
        garbage = torch.full_like(logp, torch.nan)  # values outside the mask must not be read
        entropy = -(logits.exp() * logits).sum(-1) if "entropy" in needs else None
        values = self.values[rollout.sample.before[:, :steps]] if "values" in needs else None
        divergence = None
        if "divergence" in needs:  # for rows with a teacher, whatever its prompt
            teacher = self.teacher[rollout.sample.before[:, :steps]].log_softmax(-1)
            apart = jsd(logits.flatten(0, 1), teacher.flatten(0, 1)).view(logp.shape)
            divergence = torch.where(taught_steps(rollout), apart, 0 * logp)
        likeliest = (logp >= logits.amax(-1)).double() if "likeliest" in needs else None
        logp = torch.where(rollout.mask, logp, garbage)
        upper = 0.9 * logp if "upper_logp" in needs else None
        return Evidence(
            logp=logp, entropy=entropy, likeliest=likeliest, values=values, upper_logp=upper,
            divergence=divergence,
        )  # fmt: skip

    def row_cost(self, rollout: Rollout) -> Tensor:
        return rollout.length + 1

    def trainable(self) -> dict[str, nn.Parameter]:
        named = {"table": self.table, "values": self.values}
        return {name: parameter for name, parameter in named.items() if parameter.requires_grad}

    def groups(self) -> dict[str, list[nn.Parameter]]:
        critic = {"critic": [self.values]} if self.values.requires_grad else {}
        return {"policy": [self.table]} | critic
