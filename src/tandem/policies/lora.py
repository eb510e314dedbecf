"""Low-rank adapters: trained on a frozen base, which is the reference; merged for saving."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor, nn

from tandem.contracts import positive
from tandem.contracts.bounds import values_of
from tandem.policies.weights import layers_of

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Size and place of adapters (arXiv:2106.09685)."""

    r: Annotated[int, positive]  # rank of an adapter
    alpha: Annotated[float, positive]  # scale of adapters: their output is multiplied by alpha / r
    # Names of the adapted layers; all-linear: all but the head.
    target_modules: str | Sequence[str] = "all-linear"

    def as_peft(
        self,
        places: str | Sequence[str],
        *,
        exclude: Sequence[str] = (),
        task_type: str | None = None,
    ) -> LoraConfig:
        """Adapters without dropout. places: names of layers, or a pattern of them."""
        from peft import LoraConfig

        return LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=0.0,
            target_modules=places if isinstance(places, str) else list(places),
            exclude_modules=list(exclude) or None,
            task_type=task_type,
        )


def add_adapters(
    model: nn.Module, lora: Lora, *, seed: int, within: nn.Module | None = None
) -> PeftModel:
    """The model with new float32 adapters without dropout; only they are trained.

    within: the submodule that gets adapters; None: all of it. Raises ValueError for a target that
    does not exist.
    """
    from peft import get_peft_model

    from tandem.policies.low_rank import fuse_adapters

    places = lora.target_modules if within is None else targets_within(within, model, lora)
    # peft wraps generation too, which a masked language model does not have.
    config = lora.as_peft(places, task_type="CAUSAL_LM" if model.can_generate() else None)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft's use of transformers
        torch.manual_seed(seed)
        try:
            network = get_peft_model(model, config)
        except ValueError as error:
            raise ValueError(
                f"model.lora does not fit this model: {error}; name the layers to adapt in "
                "model.lora.target_modules"
            ) from None
    check_ties(network.get_base_model())
    fuse_adapters(network)
    return network.eval()


def targets_within(part: nn.Module, model: nn.Module, lora: Lora) -> str:
    """The targets below a submodule, as a pattern of their full names."""
    (prefix,) = (name for name, module in model.named_modules() if module is part)
    wanted = lora.target_modules
    if wanted == "all-linear":
        wanted = sorted({name.rpartition(".")[2] for name in layers_of(part, nn.Linear)})
    names = "|".join(map(re.escape, values_of(wanted)))
    return rf"{re.escape(prefix)}\.(.*\.)?({names})"


def check_ties(model: nn.Module) -> None:
    """Raise ValueError for adapters on tied weights: merging those of the embeddings would change
    the head as well.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    said = (model.config, model.config.get_text_config())  # vision-language models use either
    tied = any(getattr(config, "tie_word_embeddings", False) for config in said)
    if tied and any(is_adapted(end) for end in ends):
        raise ValueError(
            "model.lora.target_modules includes the embeddings or the head, whose weights are tied "
            "in this model; leave them out"
        )


def is_adapted(layer: nn.Module) -> bool:
    """Whether a layer has an adapter."""
    from peft.tuners.lora import LoraLayer

    return isinstance(layer, LoraLayer)


def places_of(network: nn.Module) -> list[str]:
    """The names of the layers with adapters; `*` stands for the number of a block."""
    names = (bare(name) for name, layer in network.named_modules() if is_adapted(layer))
    return list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model with its adapters merged, under the names of the bare model.

    The sums are new tensors, so the weights being trained do not change. Of any shape [...].
    """
    state = model.state_dict()
    weights = {bare(name): value for name, value in state.items() if is_base(name)}
    for name, layer in model.named_modules():
        if is_adapted(layer):
            # Adapters of experts lie on a named weight of their module, one around the other.
            own = bare(f"{name}.{getattr(layer, 'parameter_name', 'weight')}")
            base, change = weights[own], layer.get_delta_weight("default")
            weights[own] = (base.to(change.dtype) + change).to(base.dtype)
    return weights


def bare(name: str) -> str:
    """The name of a layer or a weight in the model without adapters."""
    return re.sub(r"(\.base_layer)+(?=\.|$)", "", name.removeprefix("base_model.model."))


def is_base(name: str) -> bool:
    """Whether a weight belongs to the bare model."""
    return ".lora_" not in name


def save_adapted(network: PeftModel, folder: Path) -> None:
    """The adapter alone in `folder/lora`, then the merged model in `folder`."""
    # "auto" would ask the hub whether the vocabulary was extended.
    network.save_pretrained(str(folder / "lora"), save_embedding_layers=False)
    model = network.get_base_model()
    model.save_pretrained(folder, state_dict=merged_weights(model))
