"""Results of tools as messages: texts, and pictures that a policy sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tandem.data.images import as_picture
from tandem.environments.protocol import Message
from tandem.environments.tool_calls import items_of, kinds_of
from tandem.rewards.result import Missing
from tandem.types import IMAGE, Picture

NO_IMAGE = "< image>"  # a mark in a text, which would stand for a picture


@dataclass(frozen=True, slots=True)
class Result:
    """A text with a mark for each of its pictures."""

    text: str
    images: tuple[Picture, ...] = ()

    @property
    def message(self) -> Message:
        return {"role": "tool", "content": self.text}


def announces_picture(schema: object) -> bool:
    """Whether a schema, as transformers makes it of a type hint, names a picture."""
    is_one = isinstance(schema, Mapping) and "image" in kinds_of(schema)
    return is_one or any(map(announces_picture, items_of(schema)))


def result_of(name: str, value: object, *, shows: bool) -> Result:
    """What a tool of this name returned: `str` of it, or the texts and pictures of a list.

    shows: whether its world may show pictures. Raises Missing for one that it may not.
    """
    parts = [*parts_of(value)]
    images = tuple(part for part in parts if isinstance(part, Picture))
    if images and not shows:
        raise Missing(
            f"the tool {name} returned a picture, which its type hint does not announce: give its "
            "result the hint Image.Image of PIL, or list[str | Image.Image], and the run a model "
            "that reads images"
        )
    if not images:
        return Result(without_marks(str(value)) if shows else str(value))
    texts = (IMAGE if isinstance(part, Picture) else without_marks(part) for part in parts)
    return Result("".join(texts), images)


def parts_of(value: object) -> Iterator[str | Picture]:
    """The texts and pictures of a result, also in the blocks that chat templates read."""
    match value:
        case list() | tuple():
            for one in value:
                yield from parts_of(one)
        case {"type": "image", "image": inner} | {"type": "text", "text": inner}:
            yield from parts_of(inner)
        case _:
            yield as_picture(value) or str(value)


def without_marks(text: str) -> str:
    """The text, in which no mark stands for a picture."""
    return text.replace(IMAGE, NO_IMAGE)
