"""Inputs of a vision-language model: image features of its tower, and position ids of tokens.

All families of transformers accept image features in one argument, `mm_encoder_outputs`, so a
frozen tower encodes an image once, not for every row, epoch and evaluation that contains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from tandem.policies.language.inputs import FirstPass, Inputs, Layout, Probe
from tandem.policies.language.pretrained import argument_names, arguments
from tandem.policies.language.records import PromptIds, TokenSample
from tandem.policies.language.sampling import right_padded
from tandem.policies.vision.components import components_of
from tandem.policies.vision.processor import Processed, parts_of
from tandem.types import Picture

ROWS = 4  # of position ids: the position in the row, then time, height and width
ROOM = 2**24  # pixel values in one pass of a frozen tower; affects memory alone
SIDE = 32  # pixels along the images of a probe
KEPT = 2**30  # bytes of cached features of a frozen tower; the oldest are evicted
WHERE = ("token_type_ids", "mm_token_type_ids")  # 1 for an image token, if a family has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The features of an image."""

    tokens: Tensor  # [n, H], in place of the embeddings of its image tokens
    deeper: tuple[Tensor, ...]  # [n, H] each, added after the first layers; empty in most families

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.tokens, *self.deeper))


class PictureInputs(Inputs):
    """The inputs of a network with a vision tower."""

    shares_prompts = False

    def __init__(self, model: nn.Module, processed: Processed, *, frozen: bool) -> None:
        """frozen: tower and projector are not trained, so features can be cached."""
        self.base, self.processed, self.frozen = model.base_model, processed, frozen
        found = components_of(model)
        self.tied = () if frozen else (*found["projector"], *found["vision"])
        self.takes = argument_names(self.base.get_image_features)
        self.image_token: int = model.config.image_token_id
        self.banned = (self.image_token,)
        rope = model.config.get_text_config().rope_parameters or {}
        self.in_space = "mrope_section" in rope  # positions have a time, a height and a width
        self.kept: dict[str, Seen] = {}
        self.places: dict[tuple, Tensor] = {}  # position ids of prompts

    def layers(self, model: nn.Module) -> nn.Module:
        return model.base_model

    def forget(self) -> None:
        """Clear the caches after an iteration."""
        self.kept.clear()
        self.places.clear()

    # Images.

    def more(self, tokens: Tensor, pictures: Sequence[Picture]) -> dict[str, object]:
        """Further arguments for tokens [R, S], in which these images appear in this order."""
        shown = (tokens == self.image_token).long()
        if not pictures:
            assert not shown.any(), "image tokens in a prompt without images"
            return {}
        takes = arguments(type(self.base))
        said = self.join(pictures)
        return {"mm_encoder_outputs": {"image": said}, **{n: shown for n in WHERE if n in takes}}

    def join(self, pictures: Sequence[Picture]) -> SimpleNamespace:
        """Features of the images, in the form that the network's own tower returns."""
        named = {picture.name: picture for picture in pictures}
        fresh = {name: picture for name, picture in named.items() if name not in self.kept}
        found = dict(zip(fresh, self.look([*fresh.values()]), strict=True))
        known = self.kept | found
        said = [known[picture.name] for picture in pictures]
        if self.frozen:
            self.keep(known)
        tokens = [one.tokens for one in said]
        return SimpleNamespace(
            pooler_output=torch.cat(tokens) if self.stacks else tokens,
            deepstack_features=[[*x] for x in zip(*(one.deeper for one in said), strict=True)],
        )

    def keep(self, known: dict[str, Seen]) -> None:
        """Cache the latest of these, listed oldest first, up to KEPT bytes."""
        excess = sum(one.nbytes for one in known.values()) - KEPT
        oldest = iter([*known])
        while excess > 0:
            excess -= known.pop(next(oldest)).nbytes
        self.kept = known

    def look(self, pictures: Sequence[Picture]) -> list[Seen]:
        """Features of the images; those with tensors of like shape share a pass of the tower."""
        found: dict[int, Seen] = {}
        inputs = [self.tensors(picture) for picture in pictures]
        for places in parts_of(inputs, ROOM if self.frozen else None):
            given = {n: torch.cat([inputs[i][n] for i in places]) for n in inputs[places[0]]}
            with torch.no_grad() if self.frozen else nullcontext():
                out = self.base.get_image_features(**given)
            self.stacks = isinstance(out.pooler_output, Tensor)
            # A family may return features of all tiles, of which an image has several.
            every = torch.cat([*out.pooler_output]).view(-1, out.pooler_output[0].shape[-1])
            tokens = every.split([self.processed.length(pictures[i]) for i in places])
            deeper = [*zip(*out.get("deepstack_features", ()), strict=True)] or [()] * len(places)
            for i, own, level in zip(places, tokens, deeper, strict=True):
                found[i] = Seen(tokens=own, deeper=tuple(level))
        return [found[i] for i in range(len(pictures))]

    def tensors(self, picture: Picture) -> dict[str, Tensor]:
        """Arguments of the tower, on its device."""
        like = next(self.base.parameters())
        return {
            name: x.to(like.device, like.dtype if x.is_floating_point() else None)
            for name, x in self.processed.of(picture).items()
            if name in self.takes
        }

    # Position ids.

    def of_prompt(self, ids: Sequence[int], images: Sequence[Picture]) -> Tensor:
        """Position ids of a prompt alone: [4, n] int64."""
        tokens = torch.tensor([list(ids)])
        key = ((tokens == self.image_token).numpy().tobytes(), images)
        if key not in self.places:
            self.places[key] = self._of_prompt(tokens, images)
        return self.places[key]

    def _of_prompt(self, tokens: Tensor, images: Sequence[Picture]) -> Tensor:
        """[1, n] -> [4, n]"""
        column = torch.arange(tokens.shape[1])
        if not images:
            return column.expand(ROWS, -1)
        grids = [self.processed.grid(picture) for picture in images]
        given = {name: torch.cat([grid[name] for grid in grids]) for name in grids[0]}
        shown = (tokens == self.image_token).int()
        space, _ = self.base.get_rope_index(tokens, mm_token_type_ids=shown, **given)
        return torch.cat([column[None], space[:, 0]])

    def table(self, sample: TokenSample) -> Tensor:
        """Position ids of every row, [4, B, S]. After the prompt and the last image of a row they
        continue from their maximum."""
        size, width = sample.tokens.shape
        found = torch.arange(width).expand(ROWS, size, -1).clone()
        columns = sample.tokens.tolist(), sample.prompt_length.tolist(), sample.images
        for row, (tokens, length, images) in enumerate(zip(*columns, strict=True)):
            if images:
                length = max(length, width - tokens[::-1].index(self.image_token))
            own = self.of_prompt(tokens[:length], images)
            found[:, row, :length] = own
            found[1:, row, length:] += ahead_of(own)
        return found.to(sample.tokens.device)

    def lay(self, layout: Layout, sample: TokenSample, read: Tensor) -> Layout:
        columns = torch.arange(sample.tokens.shape[1], device=read.device)
        row, column = (columns < read[:, None]).nonzero(as_tuple=True)
        place = layout.start[row] + column
        taken = torch.zeros(layout.tokens.numel(), dtype=torch.bool, device=read.device)
        taken[place] = True
        # Unread columns lose their image tokens, since their images are not encoded.
        tokens = layout.tokens.masked_fill(~taken.view(layout.tokens.shape), 0)
        seen = (sample.tokens == self.image_token) & (columns < read[:, None])
        counts, order = seen.sum(1).tolist(), layout.start.argsort().tolist()
        pictures = [one for r in order for one in self.images_within(sample.images[r], counts[r])]
        found = replace(layout, tokens=tokens, more=self.more(tokens, pictures))
        if not self.in_space:
            return found
        position = self.lay_positions(layout, self.table(sample)[:, row, column], place)
        return replace(found, position=position)

    def images_within(self, images: Sequence[Picture], count: int) -> Iterator[Picture]:
        """The first images of a row: those with some of their `count` tokens read."""
        for picture in images:
            if count <= 0:
                return
            yield picture
            count -= self.processed.length(picture)

    def lay_positions(self, layout: Layout, table: Tensor, place: Tensor) -> Tensor:
        """Position ids of a layout, [4, R, S]. `table`: [4, N], the ids at `place`."""
        rows, width = layout.tokens.shape
        apart = layout.position is None
        along = torch.arange(width, device=place.device).repeat(rows)
        found = (along if apart else along * 0).expand(ROWS, -1).clone()
        found[:, place] = table
        return found.view(ROWS, rows, width)

    def first_pass(self, prompts: Sequence[PromptIds], tokens: Tensor, mask: Tensor) -> FirstPass:
        pictures = [picture for prompt in prompts for picture in prompt.images]
        more, plain = self.more(tokens, pictures), super().first_pass(prompts, tokens, mask)
        if not self.in_space:
            return replace(plain, more=more)
        position, behind = (x.expand(ROWS, -1, -1).clone() for x in (plain.position, plain.behind))
        for row, prompt in enumerate(prompts):
            own = self.of_prompt(prompt, prompt.images).to(position.device)
            position[:, row, position.shape[2] - len(prompt) :] = own
            behind[1:, row] += ahead_of(own)
        return FirstPass(position=position, behind=behind, more=more)

    def probe(self, vocabulary: int, device: torch.device) -> Probe:
        """Two rows with an image among other tokens, and one without."""
        pictures = [pattern(SIDE, shift) for shift in (0, 1)]
        shown = [self.image_token] * len(self.look(pictures[:1])[0].tokens)
        words = iter(i for i in [*range(vocabulary)] * 24 if i != self.image_token)
        rows = [
            [next(words), *shown, next(words), next(words)],
            [next(words), *shown, *(next(words) for _ in range(4))],
            [next(words) for _ in range(7)],
        ]
        tokens, read = right_padded(rows, device), torch.tensor([*map(len, rows)], device=device)
        changed = torch.where(tokens == self.image_token, tokens, next(words))
        changed[1] = tokens[1]
        before = torch.tensor([len(shown) + 1, len(shown) + 1, 1], device=device)
        sample = TokenSample(
            tokens=tokens,
            prompt_length=before,
            temperature=before.float(),
            images=(*((picture,) for picture in pictures), ()),
        )
        dress = partial(self.lay, sample=sample, read=read)
        return Probe(tokens=tokens, others=changed, read=read, dress=dress)


def pattern(side: int, shift: int) -> Picture:
    """A square test image."""
    pixels = (torch.arange(side * side * 3) * (7 + 4 * shift) % 251).view(side, side, 3)
    return Picture(
        name=f"pattern {side} {shift}",
        height=side,
        width=side,
        load=lambda: pixels.to(torch.uint8),
    )


def ahead_of(prompt: Tensor) -> int:
    """Spatial position after a prompt, minus its position in the row. `prompt`: [4, n]."""
    return int(prompt[1:].max()) + 1 - prompt.shape[1]
