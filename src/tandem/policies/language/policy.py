"""The language policy: any causal language model with its tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.contracts import positive
from tandem.environments import Environment, Mixture
from tandem.policies.language.chat import ChatOptions
from tandem.policies.language.chunked_head import with_logits
from tandem.policies.language.contexts import padded_cost
from tandem.policies.language.critic import Critic, Kind
from tandem.policies.language.inputs import TEXTS, Inputs, TokenIndex
from tandem.policies.language.kernels import fuse
from tandem.policies.language.logprob import ChunkLimits, TokenLogProbComputer
from tandem.policies.language.mixed_episodes import MixedEpisodes
from tandem.policies.language.pretrained import Build, Numerics, Packing, Pretrained, load_model
from tandem.policies.language.records import (
    Description,
    Endings,
    Questions,
    RowPasses,
    Sampling,
    TokenSample,
)
from tandem.policies.language.reprompts import with_reprompts
from tandem.policies.language.sampling import as_rollout, check_room, encode_examples
from tandem.policies.language.token_policy import FILLED, TokenPolicy
from tandem.policies.lora import Lora
from tandem.policies.quantization import Quantization
from tandem.policies.request import Request
from tandem.types import Admission, Evidence, Prompt, Rollout

__all__ = ["Description", "LanguagePolicy", "Sampling", "TokenSample"]

SAID = ("divergence", "entropy", "likeliest", "values")  # fields of a training forward
PROVIDES = frozenset({*FILLED, *SAID, "teacher_logp", "old_kl_to_ref", "behaviour_logp", "key"})


class LanguagePolicy(TokenPolicy):
    """Samples tokens autoregressively. It has no weights before `load`."""

    empty = False  # whether the weights of a path come with `shard`

    def __init__(
        self,
        *,
        path: str | None = None,
        build: Build | None = None,
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        # Attention of transformers, such as sdpa or flash_attention_2; null: its own choice.
        attn_implementation: str | None = None,
        gradient_checkpointing: bool = False,
        mlp_tile: Annotated[int, positive] | None = None,
        torch_compile: bool = False,
        packing: Packing = "auto",
        share_prompts: bool = True,
        liger: bool = False,  # true: fused kernels of liger-kernel, where the model has them
        lora: Lora | None = None,
        quantization: Quantization | None = None,
        critic: Kind = "head",  # head: values from the policy's own states; or its own network
        system_prompt: str | None = None,  # system message before every conversation; null: none
        enable_thinking: bool | None = None,  # value for the chat template; null: not passed
        chat_template: str | None = None,  # a file that replaces the chat template of the tokenizer
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
                packing=packing,
                share_prompts=share_prompts,
                liger=liger,
            ),
            talk=ChatOptions(
                system_prompt=system_prompt, enable_thinking=enable_thinking, template=chat_template
            ),
            memory=ChunkLimits(logits=logit_budget, tokens=token_budget),
            lora=lora,
            quantization=quantization,
            critic=critic,
        )
        self.episodes: MixedEpisodes | None = None

    def describe(self, request: Request) -> Description:
        given = frozenset() if request.environment is None else request.environment.gives
        return Description(kind="tokens", provides=PROVIDES | given, offloads=self.copies(request))

    def load(self, request: Request) -> None:
        """Load the weights, teachers and fused kernels."""
        # A teacher made of the policy's own weights copies them here.
        own = request.teachers is not None and request.teachers.teaches_itself
        self.empty = request.awaits_weights and not own
        super().load(request)
        if request.teachers is not None:
            self.teachers = request.teachers.load(self)
        if self.numerics.liger:  # last: after copies, and after probes that run on the CPU
            frozen = None if self.reference is None else self.reference.model
            fuse(self.model, frozen, None if self.critic is None else self.critic.layers)

    def read_weights(self) -> Pretrained:
        """The model and its tokenizer; without weights if they come with `shard`."""
        loaded = load_model(self.path, self.build, self.numerics, empty=self.empty)
        return with_logits(loaded) if self.path is None else loaded

    def meet(self, environment: Environment | Mixture | None) -> None:
        """Prepare episodes in an environment. Raises ValueError if the chat template cannot
        continue them."""
        if environment is not None:
            self.episodes = MixedEpisodes(environment, self.chat, self.ends, self.positions)

    def inputs_of(self, model: nn.Module) -> Inputs:
        """The inputs of a model."""
        return TEXTS

    def passes_of(self, request: Request) -> RowPasses:
        """One pass over all tokens of a row but its last."""
        return RowPasses(passes=1, unread=1, scored=None)

    def scorer_of(self, model: nn.Module, critic: Critic | None = None) -> TokenLogProbComputer:
        """The training forward of a model."""
        return TokenLogProbComputer(
            model,
            numerics=self.numerics,
            memory=self.memory,
            precision=self.precision,
            critic=critic,
            inputs=self.inputs_of(model),
        )

    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: Sampling | None = None,
    ) -> Rollout:
        """`group_size` answers to every prompt, prompt by prompt; group = slot of the prompt.

        The noise of a token is a function of key, slot, sample, position and token id.
        Log-probability and entropy are those of the distribution that was sampled from.
        """
        sampling = self.sampling if sampling is None else sampling
        ask = partial(self.ask, group_size=group_size, key=key, sampling=sampling)
        with self.summon_full_params(sampling):
            if self.episodes is not None:
                self.ready()  # a rank whose episodes all end at their opening asks no engine
                return self.episodes.play(prompts, slots, ask, self.engine, key=key)
            asked = ask(prompts, slots)
            answers = self.engine.answer(
                asked.encoded, asked.keys, sampling=sampling, endings=asked.endings
            )
        return as_rollout(asked, answers, self.chat)

    def ask(
        self,
        prompts: Sequence[Prompt],
        slots: Sequence[int],
        *,
        group_size: int,
        key: int,
        sampling: Sampling,
        device: torch.device | None = None,
    ) -> Questions:
        """The questions to an engine, on the policy's device or another one."""
        encoded = self.chat.encode(prompts)
        check_room(encoded, sampling, self.positions)
        group = torch.tensor(slots, device=self.device if device is None else device)
        return Questions(
            prompts=prompts,
            encoded=encoded,
            keys=rng.key(key, group[:, None], torch.arange(group_size, device=group.device)),
            group=group.repeat_interleave(group_size),
            sampling=sampling,
            endings=Endings(tokens=self.ends, strings=sampling.stop, decode=self.chat.decode_all),
        )

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        """Demonstrations as rows; all answer tokens and the end are trained. `key` is unused."""
        group = torch.tensor(slots, device=self.device)
        if self.episodes is not None:
            return self.episodes.encode(examples, group=group)
        return encode_examples(examples, chat=self.chat, group=group, positions=self.positions)

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """Log-probabilities and other values by the training forward, [B, T], with gradient."""
        compared = self.teachers.compare(rollout) if "divergence" in needs else ()
        return self.scorer(rollout.sample, rollout.mask, needs, compared)

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Fill in log-probabilities and values that are needed and missing."""
        if rollout.reprompts is not None and rollout.sample.for_teacher is None:
            rollout = with_reprompts(rollout, self.chat, self.teachers.positions)
        if needs & {"divergence", "teacher_logp"}:
            self.teachers.check_room(rollout)
        with self.summon_full_params():
            rollout = super().complete(rollout, needs)
            if "divergence" in needs:
                rollout = self.teachers.ask_servers(rollout)
            if "teacher_logp" in needs and rollout.teacher_logp is None:
                rollout = replace(rollout, teacher_logp=self.teachers.logp(rollout))
        return rollout

    def state(self) -> dict[str, Tensor]:
        """State of the policy, without weights. Of any shape [...]."""
        return super().state() | ({} if self.teachers is None else self.teachers.state())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Of any shape [...]."""
        super().load_state(state)
        if self.teachers is not None:
            self.teachers.load_state(state)

    def row_cost(self, rollout: Rollout) -> Tensor:
        """Tokens that a forward pass reads of each row, [B] int64."""
        if rollout.sample.context is not None and not self.packs:
            places = TokenIndex.of(rollout.sample, rollout.mask)
            return padded_cost(rollout.sample, places).clamp(min=1)
        return rollout.sample.prompt_length + rollout.length

    def admit_answered(self, examples: Sequence[Prompt]) -> Admission:
        """Demonstrations that fit with their answers, and the others with a reason."""
        limit = self.sampling.max_prompt_tokens
        if self.episodes is not None:
            return self.episodes.admit_answered(examples, limit)
        return self.chat.admit_answered(examples, limit, self.positions)

    def pop_timing(self) -> dict[str, float]:
        """Seconds of sampling spent in an environment."""
        if self.episodes is None:
            return {}
        return {"time/environment": self.episodes.environment.pop_seconds()}
