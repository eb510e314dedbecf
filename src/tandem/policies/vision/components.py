"""Components of a vision-language model, by name: they select which weights are trained.

They are recognised by their place in the model, not by a family's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from torch import nn

from tandem.policies.language.pretrained import arguments, language_weights

Component = Literal["language", "projector", "vision"]
COMPONENTS: tuple[Component, ...] = get_args(Component)


def components_of(model: nn.Module) -> dict[Component, list[nn.Parameter]]:
    """All weights: of the decoder with its embeddings and head, of the vision tower, and of the
    projector between them.

    The projector is beside the tower, or at its end, after the list of its blocks.
    """
    tower = model.get_encoder(modality="image")
    language = {id(p): p for p in language_weights(model)}
    own = {id(p): p for p in tower.parameters()}
    both = language | own
    projector = {id(p): p for p in model.parameters() if id(p) not in both}
    if not projector:
        projector = {id(p): p for part in behind_blocks(tower) for p in part.parameters()}
    vision = [p for name, p in own.items() if name not in projector]
    return {
        "language": [*language.values()],
        "projector": [*projector.values()],
        "vision": vision,
    }


def behind_blocks(tower: nn.Module) -> Iterator[nn.Module]:
    """The parts of a tower after the first list of its blocks."""
    parts = iter(tower.children())
    for part in parts:
        if isinstance(part, nn.ModuleList):
            break
    yield from parts


def check_features(model: nn.Module) -> None:
    """Raise ValueError for a model that cannot be given the features of images."""
    if "mm_encoder_outputs" not in arguments(type(model.base_model)):
        raise ValueError(
            f"model.path: {type(model).__name__} takes no features of images (mm_encoder_outputs), "
            "which are computed once for all passes; choose another model"
        )


def train_only(model: nn.Module, names: Sequence[Component]) -> None:
    """Train the weights of these components, and freeze all others."""
    model.requires_grad_(False)
    found = components_of(model)
    for name in names:
        for parameter in found[name]:
            parameter.requires_grad_(True)
