"""The masked-diffusion policy: any bidirectional model with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tandem import distributed, rng
from tandem.contracts import facts_of, numbers_of, positive
from tandem.hub import locate
from tandem.policies.lagged import Weights, copy_weights, swap_weights
from tandem.policies.language.chat import ChatOptions
from tandem.policies.language.logprob import ChunkLimits
from tandem.policies.language.pretrained import Build, Numerics, Pretrained
from tandem.policies.language.records import Description, RowPasses
from tandem.policies.language.sampling import check_room
from tandem.policies.language.token_policy import TokenPolicy
from tandem.policies.lora import Lora
from tandem.policies.masked.formats import format_of, read_raw, write_back
from tandem.policies.masked.logprob import MaskedLogProbComputer
from tandem.policies.masked.pretrained import (
    looking_both_ways,
    mask_tokens,
    read_masked,
    read_masked_config,
)
from tandem.policies.masked.records import HiddenRows, Likelihood, MaskedSampling, draws
from tandem.policies.masked.rows import MaskedRows, RowNoise
from tandem.policies.masked.states import path
from tandem.policies.masked.unmasking import Unmasker
from tandem.policies.quantization import Quantization
from tandem.policies.request import Request
from tandem.types import Admission, Evidence, Prompt, Rollout

VALUES = frozenset({"old_logp", "ref_logp", "old_kl_to_ref", "key"})
OF_STEPS = frozenset({"behaviour_logp", "entropy", "likeliest"})  # need the sampler's own steps


class MaskedPolicy(TokenPolicy):
    """Unmasks answers and evaluates their log-probabilities. It has no weights before `load`.

    The step axis is that of positions, in whatever order they were unmasked.
    """

    samples_by = MaskedSampling

    def __init__(
        self,
        *,
        path: str | None = None,
        build: Build | None = None,
        # Of the mask token; null: from the model or its tokenizer.
        mask_token_id: int | None = None,
        # Whether position i predicts token i + 1; null: as the model says.
        shift_logits: bool | None = None,
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        # A kind of transformers, such as sdpa or flash_attention_2; null: its own choice.
        attn_implementation: str | None = None,
        gradient_checkpointing: bool = False,
        mlp_tile: Annotated[int, positive] | None = None,
        torch_compile: bool = False,
        lora: Lora | None = None,
        quantization: Quantization | None = None,
        system_prompt: str | None = None,  # put before every conversation; null: none
        enable_thinking: bool | None = None,  # passed to the chat template; null: not passed
        # Logits of a chunk of the head: positions times vocabulary; affects memory only.
        logit_budget: int = 2**26,
        # Tokens of a pass without gradient; affects memory only.
        token_budget: int = 2**14,
    ) -> None:
        """`path` (folder or hub name) wins over `build`."""
        super().__init__(
            path=path,
            build=build,
            numerics=Numerics(
                dtype=dtype,
                attn_implementation=attn_implementation,
                gradient_checkpointing=gradient_checkpointing,
                mlp_tile=mlp_tile,
                torch_compile=torch_compile,
            ),
            talk=ChatOptions(system_prompt=system_prompt, enable_thinking=enable_thinking),
            memory=ChunkLimits(logits=logit_budget, tokens=token_budget),
            lora=lora,
            quantization=quantization,
        )
        self.mask_token_id, self.shift_logits = mask_token_id, shift_logits
        self.sampled: Weights = {}  # weights at the start of the iteration

    def describe(self, request: Request) -> Description:
        likelihood = likelihood_of(request)
        own = OF_STEPS if facts_of(likelihood).replays else frozenset()
        upper = frozenset({"upper_logp"} if "beta" in numbers_of(likelihood) else ())
        return Description(
            kind="tokens", provides=VALUES | own | upper, offloads=self.copies(request)
        )

    def load(self, request: Request) -> None:
        """Load weights and tokenizer, and a frozen copy if a reference is needed."""
        self.states_of = likelihood_of(request)
        self.replays, self.draws = facts_of(self.states_of).replays, draws(self.states_of)
        self.epochs = request.epochs
        super().load(request)
        self.chat.banned = self.tokens.banned
        trailing = numbers_of(self.states_of).get("trailing", "shown")
        self.rows = MaskedRows(chat=self.chat, ends=self.ends, trailing=trailing)

    def read_weights(self) -> Pretrained:
        """The model and its tokenizer; also finds the mask token."""
        found = read_masked(self.path, self.build, self.numerics)
        self.raw = {} if self.path is None else read_raw(locate(self.path, key="model.path"))
        self.form = format_of(self.raw)
        self.tokens = mask_tokens(found, mask=self.mask_token_id, shift=self.shift_logits)
        return found

    choose_class = staticmethod(looking_both_ways)
    read_config = staticmethod(read_masked_config)

    def passes_of(self, request: Request) -> RowPasses:
        """One pass for each state of an answer that took all steps of the sampler."""
        likelihood = likelihood_of(request)
        states = likelihood(HiddenRows.from_sampling(request.sampling))
        renewed = request.epochs > 1 and "old_logp" in request.needs and draws(likelihood)
        return RowPasses(
            passes=len(states.row),
            unread=0,
            scored=int(states.weight.count_nonzero()),
            copies=2 if renewed else 0,  # the old policy's, and the live ones in their place
        )

    def scorer_of(self, model: nn.Module, critic: None = None) -> MaskedLogProbComputer:
        """The training forward of a model."""
        return MaskedLogProbComputer(
            model,
            numerics=self.numerics,
            memory=self.memory,
            precision=self.precision,
            tokens=self.tokens,
            evidence=self.states_of,
        )

    def host(self) -> Unmasker:
        """The engine: it samples with the loaded weights."""
        return Unmasker(self.scorer, self.memory, self.precision)

    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: MaskedSampling | None = None,
    ) -> Rollout:
        """`group_size` answers to every prompt, prompt by prompt; group = slot of the prompt.

        The noise of a token is a function of key, slot, sample, position, step and token id.
        """
        sampling = self.sampling if sampling is None else sampling
        encoded = self.chat.encode(prompts)
        check_room(encoded, sampling, self.positions)
        group = torch.tensor(slots, device=self.device)
        sample = torch.arange(group_size, device=self.device)
        keys = rng.key(key, group[:, None], sample)
        with self.summon_full_params(sampling):
            answers = self.engine.answer(encoded, keys, sampling)
        noise = RowNoise(
            group=group.repeat_interleave(group_size),
            key=keys.flatten(),
            stratum=rng.key(key, group, "evidence").repeat_interleave(group_size),
            place=(sample.double() / group_size).repeat(len(prompts)),
        )
        rollout = self.rows.rollout(
            [prompt for prompt in prompts for _ in range(group_size)],
            [ids for ids in encoded for _ in range(group_size)],
            answers,
            noise,
            temperature=sampling.temperature or 1.0,
        )
        inside = {"behaviour_logp": answers.logp, "entropy": answers.entropy}
        inside = {name: torch.where(rollout.mask, x, 0) for name, x in inside.items()}
        own = inside if self.replays else {"entropy": inside["entropy"]}
        return replace(rollout, key=noise.key, **own)

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        """Demonstrations, padded with end tokens."""
        group = torch.tensor(slots, device=self.device)
        positions = self.sampling.max_new_tokens
        return self.rows.encode(examples, positions=positions, key=key, group=group)

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """The training forward, with gradient."""
        return self.scorer(rollout.sample, rollout.mask, needs)

    def describe_steps(self, rollout: Rollout, row: int) -> list[str]:
        return self.rows.describe_steps(rollout, row)

    # Noise of the evidence.

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Fill in values that are needed and missing. If another epoch follows, keep a copy of the
        weights, to evaluate the old policy at that epoch's noise."""
        if "old_logp" in needs and self.draws and self.epochs > 1:
            self.sampled = copy_weights(self.sampled_weights())
        return super().complete(rollout, needs)

    @torch.no_grad()
    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        """New states for another epoch, with the log-probabilities of the old policy and the
        reference at them. A replay of the sampler's steps is unchanged."""
        if not self.draws:
            return rollout
        sample = rollout.sample
        again = {n: rng.key(epoch, after=getattr(sample, n)) for n in ("key", "stratum")}
        rollout = replace(rollout, sample=replace(sample, **again))
        asked = {n for n in ("old_logp", "ref_logp") if getattr(rollout, n) is not None}
        if not asked:
            return rollout
        renewed = replace(rollout, **dict.fromkeys(asked))
        live = self.sampled_weights()
        with swap_weights(live, self.sampled) if "old_logp" in asked else nullcontext():
            return super().complete(renewed, frozenset(asked))

    def admit_answered(self, examples: Sequence[Prompt]) -> Admission:
        """Demonstrations whose answers fit into the positions, and the others with a reason."""
        kept, dropped = self.admit(examples)
        fits, long = self.rows.admit_answered(kept, self.sampling.max_new_tokens)
        return fits, dropped + long

    def save(self, folder: str | Path) -> None:
        """Save in the format that was loaded; adapters are merged, and also saved in `lora`."""
        super().save(folder)
        if self.form is not None and distributed.is_first():
            write_back(self.form, self.raw, Path(folder))

    def row_cost(self, rollout: Rollout) -> Tensor:
        """Tokens that the passes of each row read, [B] int64."""
        return self.scorer.cost(rollout.sample, rollout.mask)


def likelihood_of(request: Request) -> Likelihood:
    """The requested likelihood; by default the replay of the sampler's steps."""
    return path if request.likelihood is None else request.likelihood
