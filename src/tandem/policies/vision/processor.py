"""The processor of a model that sees: what it makes of a picture, and of the mark of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from tandem.types import Picture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, ProcessorMixin

ROOM = 2**28  # bytes of processed pictures that are kept
FILMS = "video_processor"  # the part of a processor that needs torchvision


def read_processor(place: str | Path, config: PretrainedConfig) -> ProcessorMixin:
    """The processor of a folder or a hub repository, whose family its configuration names.

    Raises ValueError for a family that has none.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    if type(config) not in PROCESSOR_MAPPING:
        raise ValueError(f"{type(config).__name__} has no processor of pictures")
    return without_films(PROCESSOR_MAPPING[type(config)]).from_pretrained(place)


def without_films(family: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """A family of processors that reads pictures alone: the part for films asks for torchvision.

    It keeps its name, which lies beside the weights when it is saved.
    """
    if FILMS not in family.get_attributes():
        return family

    def get_attributes(cls: type) -> list[str]:
        return [name for name in family.get_attributes() if name != FILMS]

    def made(cls: type, args: Sequence, said: Mapping[str, Any]) -> ProcessorMixin:
        return family.from_args_and_dict.__func__(cls, args, {**said, FILMS: None})

    parts = {"get_attributes": classmethod(get_attributes), "from_args_and_dict": classmethod(made)}
    return type(family.__name__, (family,), parts)


def size_of(made: Mapping[str, Any]) -> int:
    """Bytes of what was made of a picture."""
    return sum(x.nbytes for x in made.values() if isinstance(x, Tensor))


class Processed:
    """Pictures as a network takes them, each computed by itself."""

    def __init__(self, processor: ProcessorMixin) -> None:
        self.processor = processor
        self.sizes: dict[tuple[int, int], tuple[str, dict[str, Tensor]]] = {}
        self.kept: dict[str, dict[str, Any]] = {}  # those of the last pictures, oldest first

    def of(self, picture: Picture) -> dict[str, Any]:
        """All that the image processor makes of a picture: tensors, and how it was cut."""
        made = self.kept.pop(picture.name, None)
        self.kept[picture.name] = self._make(picture) if made is None else made
        while len(self.kept) > 1 and sum(map(size_of, self.kept.values())) > ROOM:
            del self.kept[next(iter(self.kept))]
        return self.kept[picture.name]

    def _make(self, picture: Picture) -> dict[str, Any]:
        options = getattr(type(self.processor), "images_kwargs", {})
        # A picture may be 3 pixels high: nothing is to be guessed of its axes.
        options = {**options, "input_data_format": "channels_last", "return_tensors": "pt"}
        return dict(self.processor.image_processor([picture.load().numpy()], **options))

    def text(self, picture: Picture) -> str:
        """What stands for it in a text: its image tokens, and what the family puts around them."""
        return self._of_size(picture)[0]

    def grid(self, picture: Picture) -> dict[str, Tensor]:
        """The shape of its patches, [1, 3], by the name of the argument; empty: the family has one
        for all."""
        return self._of_size(picture)[1]

    def _of_size(self, picture: Picture) -> tuple[str, dict[str, Tensor]]:
        size = (picture.height, picture.width)
        if size not in self.sizes:
            found = self.of(picture)
            text = self.processor.replace_image_token(found, image_idx=0)
            grid = {name: x for name, x in found.items() if name.endswith("_grid_thw")}
            self.sizes[size] = text, grid
        return self.sizes[size]
