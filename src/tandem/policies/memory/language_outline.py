"""The outline of a language policy: its networks on the meta device, built from a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tandem.hub import locate
from tandem.policies.activations import save_activations
from tandem.policies.language.chunked_head import logits_are_head_of_trunk
from tandem.policies.language.critic import Critic, critic_of
from tandem.policies.language.inputs import TokenIndex
from tandem.policies.language.logprob import ALSO, token_logp
from tandem.policies.language.positions import positions
from tandem.policies.language.teachers import SELF
from tandem.policies.memory.outline import Outline
from tandem.policies.memory.tracker import Peak, fuse_attention
from tandem.policies.teachers import weights_of
from tandem.remote import is_address

if TYPE_CHECKING:
    from tandem.policies.language.token_policy import TokenPolicy
    from tandem.policies.request import Request

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The input of one training forward: R rows of S positions."""

    rows: int
    width: int
    steps: int  # trained positions, over all rows
    masked: bool  # whether a row packs several samples, with an attention mask


class LanguageOutline(Outline):
    """The networks of a language policy, without weights."""

    def __init__(self, policy: TokenPolicy, request: Request) -> None:
        """Reads a configuration only.

        Raises ValueError if there is none.
        """
        super().__init__(request, policy.numerics, policy.lora, policy.quantization)
        self.policy, self.needs = policy, request.needs
        dtype = DTYPES.get(self.numerics.dtype)
        with torch.device("meta"):
            path = policy.path
            model = policy.build()[0] if path is None else build_from_config(policy, path, dtype)
        self.model = (model if dtype is None else model.to(dtype)).eval()
        save_activations(model, self.numerics)
        fuse_attention(model)
        self.refuse_experts()
        splits, kind = logits_are_head_of_trunk(model), policy.kind_of_critic
        self.critic = critic_of(model, kind, splits=splits) if "values" in self.needs else None
        self.reads_reference = bool(self.needs & {"ref_logp", "old_kl_to_ref"})
        self.teachers = teachers_of(policy, request)
        self.base = list(model.parameters())
        policy.choose_trained(model)
        if self.lora is not None:
            policy.adapt(model, self.lora, seed=0)
        self.trunk = model.get_decoder() if splits else model
        self.head = model.get_output_embeddings() if splits else nn.Identity()  # of its logits

    def refuse_experts(self) -> None:
        """Raise ValueError for experts whose product torch cannot outline."""
        # The configuration of a dense model names their product too, if its family has others.
        has_experts = any(type(x).__name__.endswith("Experts") for x in self.model.modules())
        said = self.model.config.get_text_config()
        grouped = has_experts and said._experts_implementation == "grouped_mm"
        plain = self.lora is None and not self.request.precision.mixed
        if grouped and not (plain and self.model.dtype is torch.bfloat16):
            raise ValueError(
                f"estimate=true: the experts of {type(self.model).__name__} can only be estimated "
                "in bfloat16 and without adapters; set model.dtype=bfloat16, model.lora=null and "
                "trainer.precision=32-true"
            )

    def is_cast(self, parameter: nn.Parameter) -> bool:
        """Whether autocast makes a bfloat16 copy: of float32 matrices used in a matmul, and of
        embeddings only if they are tied to the head."""
        read, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        only_read = parameter is read.weight and parameter is not head.weight
        return parameter.dtype == torch.float32 and parameter.ndim > 1 and not only_read

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its answer."""
        asked, most = self.sampling.max_prompt_tokens, positions(self.model)
        if asked is None:
            return self.new_tokens + 1 if most is None else most
        total = asked + self.new_tokens
        return total if self.request.environment is None or most is None else min(total, most)

    @property
    def new_tokens(self) -> int:
        """The most tokens after a prompt; in an episode with those of the environment."""
        of_move, world = self.sampling.max_new_tokens, self.request.environment
        return of_move if world is None else world.most_tokens(of_move)

    def peak_of(self, forward: Pass) -> int:
        """Peak bytes of forward and backward, without weights and their gradients."""
        return self.peak_of_update(lambda: self._loss(forward))

    def pass_of(self, rows: int, tokens: int) -> int:
        """Peak bytes of a pass without gradient over `rows` rows."""
        row = torch.empty(rows, tokens, dtype=torch.int64, device="meta")
        with torch.no_grad(), Peak([*self.held_tensors, row]) as peak:
            self.trunk(input_ids=row)
        return peak.most

    def cache_of(self, tokens: int) -> int:
        """Bytes of the key-value cache of a row of `tokens` tokens."""
        row = torch.empty(1, tokens, dtype=torch.int64, device="meta")
        with torch.no_grad(), Peak([*self.held_tensors, row]) as peak:
            remembered = self.model(input_ids=row, use_cache=True).past_key_values
            size = peak.now
        del remembered
        return size

    def _loss(self, forward: Pass) -> Tensor:
        shape = (forward.rows, forward.width)
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        mask = None
        if forward.masked:
            mask = torch.empty(shape[0], 1, *shape[1:] * 2, dtype=torch.bool, device="meta")
        place = torch.empty(forward.steps, dtype=torch.int64, device="meta")
        states = self._states(self.trunk, tokens, mask, place)
        warm = torch.ones(forward.steps)
        numbers = token_logp(
            states,
            self.head,
            TokenIndex(row=place, step=place, column=place, token=place, temperature=warm),
            vocabulary=self.model.get_output_embeddings().weight.shape[0],
            logit_budget=self.policy.memory.logits,
            also=[name for name in ALSO if name in self.needs],
        )
        return sum(x.sum() for x in numbers.values()) + self._values(tokens, mask, place, states)

    def _states(self, trunk: nn.Module, tokens: Tensor, mask: Tensor, place: Tensor) -> Tensor:
        out = trunk(input_ids=tokens, attention_mask=mask, use_cache=False)
        states = out.logits if trunk is self.model else out.last_hidden_state
        return states.flatten(0, 1).index_select(0, place)

    def _values(self, tokens: Tensor, mask: Tensor, place: Tensor, states: Tensor) -> Tensor | int:
        critic: Critic | None = self.critic
        if critic is None:
            return 0
        if critic.layers is not None:
            states = self._states(critic.layers, tokens, mask, place)
        return critic.head(states.to(critic.head.weight.dtype)).sum()


def teachers_of(policy: TokenPolicy, request: Request) -> list[nn.Module]:
    """The networks of the teachers, each once, without those on a server or the policy itself."""
    if request.teachers is None:
        return []
    dtype = DTYPES.get(request.teachers.dtype or policy.numerics.dtype)
    folders = request.teachers.folders.items()
    here = [(source, x) for source, x in folders if x != SELF and not is_address(x)]
    named = {folder: source for source, folder in here}
    with torch.device("meta"):
        return [
            build_from_config(
                policy,
                str(weights_of(folder)),
                dtype,
                key=f"algorithm.teachers.folders.{source}",
            )
            for folder, source in named.items()
        ]


def build_from_config(
    policy: TokenPolicy, path: str, dtype: torch.dtype | None, *, key: str = "model.path"
) -> nn.Module:
    """The model of a config.json. Raises ValueError for a folder without one."""
    try:
        config = policy.read_config(locate(path, key=key))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{str(error).splitlines()[0]} (an estimate only needs a config.json: set {key}=FOLDER)"
        ) from None
    given = (config.dtype or torch.float32) if dtype is None else dtype
    return policy.choose_class(config).from_config(config, dtype=given, trust_remote_code=False)
