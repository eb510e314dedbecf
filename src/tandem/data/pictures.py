"""Pictures as answers: a demonstration or a pair, stored beside the file and resized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from tandem.data.decoding import Decoding, Size, nearest_size
from tandem.data.images import show_file
from tandem.types import Picture, Prompt

KEY = "picture"  # of a row that shows one; pairs name theirs as `chosen` and `rejected`
Resize = int | Sequence[Sequence[int]] | None


def make_finisher(folder: Path, *, pictures: bool, resize: Resize) -> Callable[[Prompt], Prompt]:
    """A function that turns a row into a prompt with its pictures; names start at `folder`.

    Without `pictures`, rows that name one are refused.
    """
    sizes = sizes_of(resize)
    if isinstance(resize, int) and not pictures:
        raise ValueError(f"data.resize={resize} applies to pictures; set data.pictures=true")
    if not pictures:
        return refuse_named
    decode = Decoding(exact=True, sizes=sizes)

    @cache  # a picture may occur in many rows
    def find(name: str, beside: Picture | None = None) -> Picture:
        return show_file(folder / name, decode.for_second(beside))

    return lambda prompt: with_pictures(prompt, find)


def sizes_of(resize: Resize) -> tuple[Size, ...]:
    """Sizes (height, width) to crop pictures to; none: unchanged.

    Raises ValueError for an invalid size.
    """
    if resize is None:
        return ()
    if isinstance(resize, int):
        if resize < 1:
            raise ValueError(f"data.resize={resize} must be a side in pixels, at least 1, or null")
        return ((resize, resize),)
    sizes = tuple(resize)
    if not sizes or not all(isinstance(size, Sequence) and len(size) == 2 for size in sizes):
        said = f"data.resize={[*resize]}"
        raise ValueError(f"{said}: give sizes as [[height, width], ...], or one side")
    if (least := min(map(min, sizes))) < 1:
        raise ValueError(f"data.resize: a side must have at least 1 pixel, not {least}")
    return tuple((height, width) for height, width in sizes)


def with_size(prompt: Prompt, resize: Resize) -> Prompt:
    """The prompt, which asks for a picture as large as its own, or for the size nearest in shape to
    the first picture that it shows. One side alone is the size of the model, whatever its row says
    of the stored file."""
    like = next((x for x in (prompt.media, prompt.chosen_media, *prompt.images) if x), None)
    if resize is None or like is None:
        return prompt
    if isinstance(resize, int):
        own = {name: x for name, x in prompt.fields.items() if name not in ("height", "width")}
        return replace(prompt, size=None, fields=own)
    return replace(prompt, size=nearest_size(like.height, like.width, sizes_of(resize)))


def refuse_named(prompt: Prompt) -> Prompt:
    """The prompt as it is, if it names no picture."""
    if KEY in prompt.fields:
        raise ValueError(f"`{KEY}` names a file; set data.pictures=true")
    return prompt


def with_pictures(prompt: Prompt, find: Callable[..., Picture]) -> Prompt:
    """The prompt with the picture or the pair of pictures that its row names or holds.

    Raises ValueError for a pair of equal pictures.
    """
    media = _find(KEY, prompt.fields.get(KEY), find)
    chosen = _find("chosen", prompt.chosen, find)
    rejected = _find("rejected", prompt.rejected, partial(find, beside=chosen))
    if chosen is not None and chosen == rejected:
        raise ValueError("`chosen` and `rejected` show the same picture: nothing is preferred")
    return replace(
        prompt,
        media=media,
        chosen=None,
        rejected=None,
        chosen_media=chosen,
        rejected_media=rejected,
        fields={name: value for name, value in prompt.fields.items() if name != KEY},
    )


def _find(key: str, named: object, find: Callable[[str], Picture]) -> Picture | None:
    match named:
        case None | Picture():
            return named
        case str() if named.strip():
            try:
                return find(named)
            except ValueError as problem:
                raise ValueError(f"`{key}`: {named} {problem}") from None
    raise ValueError(f"`{key}` must be a file name, not {named!r}")
