"""Preprocessed images, and the image tokens that stand for each in a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, as_tensor

from tandem.types import Picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transformers import ProcessorMixin

ROOM = 2**28  # bytes of preprocessed images that are cached


def size_of(made: Mapping[str, Any]) -> int:
    """Bytes of a preprocessed image."""
    return sum(x.nbytes for x in made.values() if isinstance(x, Tensor))


class OfSize(NamedTuple):
    """What all images of a size have in common."""

    text: str  # its image tokens, and those around them
    ids: Tensor  # [1, n] int64 of that text
    grid: dict[str, Tensor]


class Processed:
    """A cache of preprocessed images, each computed by itself."""

    def __init__(self, processor: ProcessorMixin, image_token: int) -> None:
        """image_token: the id that the model reads. Some processors mark an image by another."""
        self.processor, self.image_token = processor, image_token
        self.sizes: dict[tuple[int, int], OfSize] = {}
        self.kept: dict[str, dict[str, Any]] = {}  # the latest images, oldest first

    def of(self, picture: Picture) -> dict[str, Any]:
        """The tensors of an image, its `text`, and the `ids` of that."""
        made = self.kept.pop(picture.name, None)
        self.kept[picture.name] = self._make(picture) if made is None else made
        while len(self.kept) > 1 and sum(map(size_of, self.kept.values())) > ROOM:
            del self.kept[next(iter(self.kept))]
        return self.kept[picture.name]

    def _make(self, picture: Picture) -> dict[str, Any]:
        # A whole call: families give their image processors and texts options of their own in it.
        made = self.processor(
            images=[picture.load().numpy()],
            text=[self.processor.image_token],
            # Axes are named explicitly: an image of height 3 would be mistaken for channels first.
            images_kwargs={"input_data_format": "channels_last", "return_tensors": "pt"},
            return_text_replacement_offsets=True,
        )
        ((mark,),) = made["text_replacement_offsets"]
        tensors = {name: x for name, x in made.items() if isinstance(x, Tensor)}
        return {**tensors, "text": mark["replacement"], "ids": as_tensor(made["input_ids"])}

    def text(self, picture: Picture) -> str:
        """Its image tokens, and the tokens that the family puts around them."""
        return self._of_size(picture).text

    def length(self, picture: Picture) -> int:
        """The number of its image tokens."""
        return int((self._of_size(picture).ids == self.image_token).sum())

    def grid(self, picture: Picture) -> dict[str, Tensor]:
        """The shape of its patch grid, [1, 3], by argument name; empty if the family has a fixed
        one."""
        return self._of_size(picture).grid

    def _of_size(self, picture: Picture) -> OfSize:
        size = (picture.height, picture.width)
        if size not in self.sizes:
            found = self.of(picture)
            grid = {name: x for name, x in found.items() if name.endswith("_grid_thw")}
            self.sizes[size] = OfSize(text=found["text"], ids=found["ids"], grid=grid)
        return self.sizes[size]


def parts_of(inputs: Sequence[Mapping[str, Tensor]], room: int | None) -> Iterator[list[int]]:
    """Indices of the images of each pass, with up to `room` numbers; None: no limit."""
    for places in alike(inputs):
        part, taken = [], 0
        for place in places:
            size = sum(x.numel() for x in inputs[place].values())
            if part and room is not None and taken + size > room:
                yield part
                part, taken = [], 0
            part, taken = [*part, place], taken + size
        yield part


def alike(inputs: Sequence[Mapping[str, Tensor]]) -> list[list[int]]:
    """Indices of images, grouped so that tensors differ in their first axis alone."""
    shapes: dict[tuple, list[int]] = {}
    for place, tensors in enumerate(inputs):
        key = tuple((name, tuple(x.shape[1:])) for name, x in tensors.items())
        shapes.setdefault(key, []).append(place)
    return [*shapes.values()]
