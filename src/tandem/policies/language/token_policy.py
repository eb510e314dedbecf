"""The base class of token policies: loading, evaluating and saving a network with its tokenizer."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.policies.engines.rollout_engine import EngineMixin
from tandem.policies.language.chat import Chat, ChatOptions
from tandem.policies.language.checkpoint import read_config
from tandem.policies.language.chunked_head import logits_are_head_of_trunk
from tandem.policies.language.critic import Critic, Kind, critic_of
from tandem.policies.language.kernels import check_kernels
from tandem.policies.language.loaded_teachers import LoadedTokenTeachers
from tandem.policies.language.logprob import ChunkLimits, TokenLogProbComputer
from tandem.policies.language.message_frames import end_answers
from tandem.policies.language.positions import longest_prompt, positions
from tandem.policies.language.pretrained import (
    Build,
    Numerics,
    Pretrained,
    causal,
    end_tokens,
    language_layers,
    refuse_frozen,
    train_language,
)
from tandem.policies.language.records import RowPasses, Sampling
from tandem.policies.lora import Lora, add_adapters, save_adapted
from tandem.policies.quantization import Quantization, quantize
from tandem.policies.request import Request
from tandem.policies.sharding import assemble
from tandem.policies.weights import (
    gather_all,
    lend,
    named_parameters,
    parameter_groups,
    warn_of_rounding,
)
from tandem.types import Admission, Prompt, Rollout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tandem.environments import Environment, Mixture

BEFORE = frozenset({"old_logp", "old_values", "sum_pi_squared"})  # under weights before updates
FILLED = (*BEFORE, "ref_logp")  # by `complete`, if needed and missing


class TokenPolicy(EngineMixin):
    """Evaluates log-probabilities of tokens; subclasses sample. No weights before `load`."""

    samples_by = Sampling

    def __init__(
        self,
        *,
        path: str | None,
        build: Build | None,
        numerics: Numerics,
        talk: ChatOptions,
        memory: ChunkLimits,
        lora: Lora | None = None,
        quantization: Quantization | None = None,
        critic: Kind = "head",
    ) -> None:
        """`path` (folder or hub name) wins over `build`; `quantization`: storage of the frozen
        base of adapters; None: not quantised."""
        super().__init__()
        self.path, self.build = path, build
        self.numerics, self.talk, self.memory = numerics, talk, memory
        self.lora, self.quantization, self.kind_of_critic = lora, quantization, critic
        self.reference: TokenLogProbComputer | None = None
        self.critic: Critic | None = None
        self.teachers: LoadedTokenTeachers | None = None

    def load(self, request: Request) -> None:
        """Load weights and tokenizer, and the frozen copy and the critic that are needed."""
        self.sampling, self.precision = request.sampling, request.precision
        self.offload, self.lagged.staleness = request.offload, self.sampling.staleness
        own, full = self.numerics, self.numerics.dtype == "float32" and not self.precision.mixed
        check_kernels(own.attn_implementation, liger=own.liger, float32=full)
        model, tokenizer = self.read_weights()
        self.choose_trained(model)
        self.chat = self.chat_of(tokenizer)
        self.ends, self.positions = self.chat.ends(end_tokens(model)), positions(model)
        end_answers(self.chat, self.ends)
        self.meet(request.environment)
        self.network = model
        if "values" in request.needs:  # before adapters are added to its layers
            splits = logits_are_head_of_trunk(model)
            self.critic = critic_of(model, self.kind_of_critic, splits=splits)
        if self.lora is not None:
            self.network = self.adapt(model, self.lora, seed=request.seed)
        refuse_frozen(self.network)
        if self.quantization is not None:
            quantize(self.network, self.quantization)
        self.scorer = self.scorer_of(model, self.critic)
        self.packs = self.scorer.packs
        self.engine = self.host()
        warn_of_rounding(self.trainable())
        if "reference" in self.copies(request):
            self.reference = self.scorer_of(copy.deepcopy(model).requires_grad_(False))
        self.exact = self.precision.is_exact(self.network)

    def copies(self, request: Request) -> frozenset[str]:
        """Copies besides the trained weights."""
        reads = request.needs & {"ref_logp", "old_kl_to_ref"}
        return frozenset({"reference"} if reads and self.lora is None else ())

    read_config = staticmethod(read_config)
    choose_class = staticmethod(causal)

    @abstractmethod
    def read_weights(self) -> Pretrained:
        """The model and its tokenizer."""

    def chat_of(self, tokenizer: Any) -> Chat:
        """The tokenization of prompts."""
        return Chat(tokenizer, self.talk)

    def meet(self, environment: Environment | Mixture | None) -> None:
        """Check an environment before engines are made: the chat template may not support it."""

    def choose_trained(self, model: nn.Module) -> None:
        """Select the trained weights of a model: all that read texts."""
        if language_layers(model) is not None:
            train_language(model)

    def adapt(self, model: nn.Module, lora: Lora, *, seed: int) -> nn.Module:
        """The model with new adapters in its layers."""
        return add_adapters(model, lora, seed=seed, within=language_layers(model))

    @abstractmethod
    def scorer_of(self, model: nn.Module, critic: Critic | None = None) -> TokenLogProbComputer:
        """The training forward of a model."""

    @abstractmethod
    def passes_of(self, request: Request) -> RowPasses:
        """The passes of a training forward over a row."""

    @torch.no_grad()
    def logp(self, rows: Rollout) -> Tensor:
        """Log-probabilities of the steps by the training forward, [B, T] nats."""
        return self.scorer.in_parts(rows.sample, rows.mask).logp

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Fill in log-probabilities and values that are needed and missing."""
        asked = needs | {"old_logp", "ref_logp"} if "old_kl_to_ref" in needs else needs
        wanted = {name for name in FILLED if name in asked and getattr(rollout, name) is None}
        sampler_speaks = rollout.behaviour_logp is not None and "old_logp" in wanted
        with self.summon_full_params():
            # A server computes differently, and another one may answer tomorrow.
            if sampler_speaks and self.supply is None and self.trusts(rollout):
                rollout = replace(rollout, old_logp=rollout.behaviour_logp)
                wanted.remove("old_logp")
            if wanted & BEFORE:
                rollout = self._remember(rollout, wanted)
            if "ref_logp" in wanted:
                rollout = replace(rollout, ref_logp=self._ref_logp(rollout))
            if "old_kl_to_ref" in needs:
                rollout = replace(rollout, old_kl_to_ref=rollout.old_logp - rollout.ref_logp)
            if self.supply is not None and rollout.behaviour_logp is not None:
                self.examine(rollout)
        return rollout

    def _remember(self, rollout: Rollout, wanted: set[str]) -> Rollout:
        """Values under the weights before their update, in one pass."""
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
        own = {"returns": "reference" in self.offload}
        with lend(self.reference.model, self.device, **own), gather_all(self.reference.weights):
            return self.reference.in_parts(rollout.sample, rollout.mask).logp

    def admit(self, prompts: Sequence[Prompt], samplings: Sequence[Sampling] = ()) -> Admission:
        """Prompts that fit the policy's own sampling and all of `samplings`, and the others with a
        reason."""
        return self.chat.admit(prompts, longest_prompt(self.positions, [self.sampling, *samplings]))

    def describe_prompt(self, prompt: Prompt) -> str:
        """The text that the model reads."""
        return self.chat.text(prompt)

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard the critic with the network that it reads; the frozen copy separately."""
        own = [self.network] if self.critic is None else [self.network, self.critic]
        self.scorer.shard(own, mesh)
        self.packs = self.scorer.packs
        if self.reference is not None:
            self.reference.shard([self.reference.model], mesh)

    def summon_full_params(
        self, sampling: Sampling | None = None, needs: frozenset[str] = frozenset()
    ) -> AbstractContextManager[None]:
        """An engine with its own weights samples without the ranks' weights, and `complete` then
        gathers block by block: the whole weights of a large model are never gathered at once."""
        if self.supply is not None and not needs:
            return nullcontext()
        compared = self.reference if "ref_logp" in needs else None
        return gather_all(*(scorer.weights for scorer in (self.scorer, compared) if scorer))

    def notify(self, event: Literal["update", "iteration"]) -> None:
        if event == "update" and self.supply is not None:
            self.supply.mark_outdated()
        if event == "update" and self.teachers is not None:
            self.teachers.follow()
        if event == "iteration" and self.lagged.staleness:
            self.lagged.forget(self.iteration + 1)

    def trainable(self) -> dict[str, nn.Parameter]:
        """All trained weights, by name."""
        return named_parameters(self.network, self.critic)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameter groups of the optimiser."""
        return parameter_groups(self.network, self.critic)

    def save(self, folder: str | Path) -> None:
        """Save in Hugging Face format; adapters are merged, and also saved in `lora`."""
        with assemble(self.network):
            if not distributed.is_first():
                return
            if self.lora is None:
                self.network.save_pretrained(folder)
            else:
                save_adapted(self.network, Path(folder))
            self.chat.save(folder)
