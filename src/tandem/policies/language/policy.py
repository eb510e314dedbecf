"""The language policy: any causal language model with its tokenizer and chat template."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tandem import distributed, rng
from tandem.policies.engines.rollout_engine import EngineMixin
from tandem.policies.language.bridge import Bridge
from tandem.policies.language.chat import Chat, ChatOptions
from tandem.policies.language.critic import Critic, Kind, critic_of
from tandem.policies.language.episodes import Episodes
from tandem.policies.language.inputs import TEXTS, Inputs
from tandem.policies.language.kernels import check_kernels
from tandem.policies.language.liger import fuse
from tandem.policies.language.logprob import ChunkLimits, TokenLogProbComputer
from tandem.policies.language.pretrained import (
    Build,
    Numerics,
    Packing,
    Pretrained,
    causal,
    end_tokens,
    logits_are_head_of_trunk,
    positions,
    pretrained,
    read_config,
)
from tandem.policies.language.records import (
    Answers,
    Description,
    Endings,
    Questions,
    RowPasses,
    Sampling,
    TokenSample,
)
from tandem.policies.language.reprompts import reprompted
from tandem.policies.language.rows import as_rollout, check_room, encode_examples
from tandem.policies.language.teachers import LoadedTokenTeachers
from tandem.policies.lora import Lora, adapted, save_adapted
from tandem.policies.request import Request
from tandem.policies.weights import (
    Sharded,
    all_gathered,
    assembled,
    move,
    named_parameters,
    parameter_groups,
    warn_of_rounding,
)
from tandem.types import Evidence, Prompt, Rollout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Description", "LanguagePolicy", "Sampling", "TokenSample"]

BEFORE = frozenset({"old_logp", "old_values", "sum_pi_squared"})  # of weights not yet updated
FILLED = (*BEFORE, "ref_logp", "teacher_logp")  # by `complete`, if they are read and not given
OF_KL = frozenset({"old_logp", "ref_logp"})  # what the KL of a token that was taken is made of
PROVIDES = frozenset(
    {
        *FILLED,
        "divergence",
        "old_kl_to_ref",
        "behaviour_logp",
        "key",
        "entropy",
        "likeliest",
        "values",
    }
)


class LanguagePolicy(EngineMixin):
    """Samples tokens, and says how likely they are. It has no weights before `load`."""

    samples_by = Sampling

    def __init__(
        self,
        *,
        path: str | None = None,
        build: Build | None = None,
        seed: int = 0,
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        attn_implementation: str | None = None,
        gradient_checkpointing: bool = False,
        torch_compile: bool = False,
        packing: Packing = "auto",
        share_prompts: bool = True,
        liger: bool = False,
        lora: Lora | None = None,
        critic: Kind = "head",
        system_prompt: str | None = None,
        enable_thinking: bool | None = None,
        chat_template: str | None = None,
        logit_budget: int = 2**24,
        token_budget: int = 2**14,
    ) -> None:
        """`path` (folder or hub name) wins over `build`; `seed` is that of new adapters."""
        super().__init__()
        self.path, self.build, self.seed = path, build, seed
        self.numerics = Numerics(
            dtype=dtype,
            attn_implementation=attn_implementation,
            gradient_checkpointing=gradient_checkpointing,
            torch_compile=torch_compile,
            packing=packing,
            share_prompts=share_prompts,
            liger=liger,
        )
        self.lora, self.kind_of_critic = lora, critic
        self.talk = ChatOptions(
            system_prompt=system_prompt, enable_thinking=enable_thinking, template=chat_template
        )
        self.memory = ChunkLimits(logits=logit_budget, tokens=token_budget)
        self.reference: TokenLogProbComputer | None = None
        self.critic: Critic | None = None
        self.teachers: LoadedTokenTeachers | None = None
        self.episodes: Episodes | None = None

    def describe(self, request: Request) -> Description:
        given = frozenset() if request.environment is None else request.environment.gives
        return Description(kind="tokens", provides=PROVIDES | given)

    def load(self, request: Request) -> None:
        """Weights and tokenizer; a frozen copy only if a reference is needed without adapters, and
        a critic only if "values" are."""
        self.sampling, needs, self.precision = request.sampling, request.needs, request.precision
        self.lagged.staleness = self.sampling.staleness
        check_kernels(self.numerics.liger, self.numerics.attn_implementation)
        model, tokenizer = self.read_weights()
        self.chat = self.chat_of(tokenizer)
        self.inputs = self.inputs_of(model)
        self.ends = self.chat.ends(end_tokens(model))
        self.positions = positions(model)
        if (world := request.environment) is not None:
            self.chat.tools = world.about.tools
            bridge = Bridge(self.chat, self.ends, limit=world.max_observation_tokens)
            self.episodes = Episodes(world, bridge, self.positions)
        self.network = model
        if "values" in needs:  # before adapters come into its layers
            splits = logits_are_head_of_trunk(model)
            self.critic = critic_of(model, self.kind_of_critic, splits=splits)
        if self.lora is not None:
            self.network = self.adapt(model, self.lora)
        self.scorer = self.scorer_of(model, self.critic, self.inputs)
        self.packs = self.scorer.packs
        self.engine = self.host()
        warn_of_rounding(self.trainable())
        if needs & {"ref_logp", "old_kl_to_ref"} and self.lora is None:
            frozen = copy.deepcopy(model).requires_grad_(False)
            self.reference = self.scorer_of(frozen, inputs=self.inputs_of(frozen))
        if request.teachers is not None:
            self.teachers = request.teachers.load(self)
        self.exact = self.precision.is_exact(self.network)
        if self.numerics.liger:  # after all that is copied, or judged on the CPU
            frozen = None if self.reference is None else self.reference.model
            fuse(model, frozen, None if self.critic is None else self.critic.layers)

    def read_weights(self) -> Pretrained:
        """The model and its tokenizer."""
        return pretrained(self.path, self.build, self.numerics)

    def chat_of(self, tokenizer: Any) -> Chat:
        """The way of prompts to the model."""
        return Chat(tokenizer, self.talk)

    def inputs_of(self, model: nn.Module) -> Inputs:
        """What a model is given beside tokens."""
        return TEXTS

    def choose_trained(self, model: nn.Module) -> None:
        """Let of a model learn what this policy trains: all of it."""

    def adapt(self, model: nn.Module, lora: Lora) -> nn.Module:
        """The model with new adapters in its layers."""
        return adapted(model, lora, seed=self.seed)

    read_config = staticmethod(read_config)
    choose_class = staticmethod(causal)

    def passes_of(self, request: Request) -> RowPasses:
        """What a training forward reads of a row: all but its last token, once."""
        return RowPasses(passes=1, unread=1, scored=None)

    def scorer_of(
        self, model: nn.Module, critic: Critic | None = None, inputs: Inputs = TEXTS
    ) -> TokenLogProbComputer:
        """What says how likely tokens are under a model."""
        return TokenLogProbComputer(
            model,
            numerics=self.numerics,
            memory=self.memory,
            precision=self.precision,
            critic=critic,
            inputs=inputs,
        )

    def shard(self, mesh: DeviceMesh) -> None:
        """The critic with the network it reads; the frozen copy by itself."""
        own = [self.network] if self.critic is None else [self.network, self.critic]
        self.scorer.weights = Sharded(own, mesh)
        if self.reference is not None:
            self.reference.weights = Sharded([self.reference.model], mesh)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def notify(self, event: Literal["update", "iteration"]) -> None:
        if event == "update" and self.supply is not None:
            self.supply.outdated()
        if event == "update" and self.teachers is not None:
            self.teachers.follow()
        if event == "iteration":
            self.inputs.forget()
            if self.reference is not None:
                self.reference.inputs.forget()
        if event == "iteration" and self.lagged.staleness:
            self.lagged.forget(self.iteration + 1)

    def summon_full_params(
        self, sampling: Sampling | None = None, needs: frozenset[str] = frozenset()
    ) -> AbstractContextManager[None]:
        """An engine with weights of its own samples without those of the ranks, and what
        `complete` fills is asked part by part: all weights of a large model are nowhere together.
        """
        if self.supply is not None and not needs:
            return nullcontext()
        compared = self.reference if "ref_logp" in needs else None
        return all_gathered(*(scorer.weights for scorer in (self.scorer, compared) if scorer))

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
        asked = self.ask(prompts, group_size, key=key, slots=slots, sampling=sampling)
        with self.summon_full_params(sampling):
            if self.episodes is not None:
                return self.episodes.play(asked, self.engine, key=key)
            answers = self.engine.answer(
                asked.encoded, asked.keys, sampling=sampling, endings=asked.endings
            )
        return self.read(asked, answers)

    def ask(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: Sampling,
        device: torch.device | None = None,
    ) -> Questions:
        """What an engine is asked, on the policy's device or another one."""
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

    def read(self, asked: Questions, answers: Answers) -> Rollout:
        """The rows that an engine answered, on the device of its answers."""
        rows = as_rollout(
            asked.prompts,
            asked.encoded,
            answers,
            chat=self.chat,
            group=asked.group,
            temperature=asked.sampling.temperature or 1.0,
        )
        return replace(rows, key=asked.keys.flatten())

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        """Demonstrations: every answer token, the end token too, is trained. None reads `key`."""
        group = torch.tensor(slots, device=self.device)
        if self.episodes is not None:
            return self.episodes.encode(examples, group=group)
        return encode_examples(examples, chat=self.chat, group=group, positions=self.positions)

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """The training forward, with gradient."""
        compared = self.teachers.compare(rollout) if "divergence" in needs else ()
        return self.scorer(rollout.sample, rollout.mask, needs, compared)

    @torch.no_grad()
    def logp(self, rows: Rollout) -> Tensor:
        """Log-probabilities of the steps by the training forward, [B, T] nats."""
        return self.scorer.in_parts(rows.sample, rows.mask).logp

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Fill the log-probabilities and values that are read and were not given."""
        asked = needs | OF_KL if "old_kl_to_ref" in needs else needs
        wanted = {name for name in FILLED if name in asked and getattr(rollout, name) is None}
        if rollout.reprompts is not None and rollout.sample.for_teacher is None:
            rollout = reprompted(rollout, self.chat, self.teachers.positions)
        sampler_speaks = rollout.behaviour_logp is not None and "old_logp" in wanted
        with self.summon_full_params():
            # A server computes in ways of its own, and may be another one tomorrow.
            if sampler_speaks and self.supply is None and self.trusts(rollout):
                rollout = replace(rollout, old_logp=rollout.behaviour_logp)
                wanted.remove("old_logp")
            if wanted & BEFORE:
                rollout = self._remember(rollout, wanted)
            if "ref_logp" in wanted:
                rollout = replace(rollout, ref_logp=self._ref_logp(rollout))
            if "teacher_logp" in wanted:
                rollout = replace(rollout, teacher_logp=self.teachers.logp(rollout))
            if "old_kl_to_ref" in needs:
                rollout = replace(rollout, old_kl_to_ref=rollout.old_logp - rollout.ref_logp)
            if self.supply is not None and rollout.behaviour_logp is not None:
                self.examine(rollout)
        return rollout

    def _remember(self, rollout: Rollout, wanted: set[str]) -> Rollout:
        """What the weights say before they are updated, in one pass."""
        also = {"values" if name == "old_values" else name for name in wanted & BEFORE}
        said = self.scorer.in_parts(rollout.sample, rollout.mask, frozenset(also))
        known = {"old_logp": said.logp, "old_values": said.values}
        known["sum_pi_squared"] = said.sum_pi_squared
        return replace(rollout, **{name: x for name, x in known.items() if name in wanted})

    def _ref_logp(self, rollout: Rollout) -> Tensor:
        if self.lora is not None:
            with self.network.disable_adapter():
                return self.scorer.in_parts(rollout.sample, rollout.mask).logp
        assert self.reference is not None, "load() was not told that ref_logp is needed"
        move(self.reference.model, self.device)
        with self.reference.weights.gathered():
            return self.reference.in_parts(rollout.sample, rollout.mask).logp

    def state(self) -> dict[str, Tensor]:
        """What the policy remembers beside its weights. Of any shape [...]."""
        return super().state() | ({} if self.teachers is None else self.teachers.state())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave. Of any shape [...]."""
        super().load_state(state)
        if self.teachers is not None:
            self.teachers.load_state(state)

    def row_cost(self, rollout: Rollout) -> Tensor:
        """Tokens that a forward pass reads for each row, [B] int64."""
        return rollout.sample.prompt_length + rollout.length

    def admit(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling] = ()
    ) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
        """The prompts that can be answered, by the policy's own sampling and by these, and the
        others with the reason."""
        every = [self.sampling, *samplings]
        limits = [x.max_prompt_tokens for x in every if x.max_prompt_tokens is not None]
        if self.positions is not None:
            limits.append(self.positions - max(x.max_new_tokens for x in every))
        return self.chat.admit(prompts, min(limits, default=None))

    def admit_answered(
        self, examples: Sequence[Prompt]
    ) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
        """The demonstrations that fit with their answers, and the others with the reason."""
        limit = self.sampling.max_prompt_tokens
        if self.episodes is not None:
            return self.episodes.admit_answered(examples, limit)
        return self.chat.admit_answered(examples, limit, self.positions)

    def pop_timing(self) -> dict[str, float]:
        """Of sampling the seconds in which an environment was asked."""
        if self.episodes is None:
            return {}
        return {"time/environment": self.episodes.environment.pop_seconds()}

    def describe_prompt(self, prompt: Prompt) -> str:
        """The text as the model sees it."""
        return self.chat.text(prompt)

    def trainable(self) -> dict[str, nn.Parameter]:
        """All that learns, by name."""
        return named_parameters(self.network, self.critic)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """What an optimiser treats alike."""
        return parameter_groups(self.network, self.critic)

    def save(self, folder: str | Path) -> None:
        """Plain Hugging Face format; adapters are merged, and lie beside it in `lora`."""
        with assembled(self.network):
            if not distributed.is_first():
                return
            if self.lora is None:
                self.network.save_pretrained(folder)
            else:
                save_adapted(self.network, Path(folder))
            self.chat.save(folder)
