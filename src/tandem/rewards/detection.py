"""Object detectors of transformers: requested objects in a picture, and their boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from tandem.hub import locate, read_processor
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting, network, read
from tandem.rewards.objects import Found
from tandem.rewards.result import HERE, Missing

KEY = f"{HERE}function.detector.path"
VOWELS = tuple("aeiou")
NAMES = f"{HERE}function.detector.names"


class ZeroShotDetector:
    """A detector of objects given by text: Grounding DINO, OWL-ViT, OWLv2.

    It gets one name at a time, so that names do not compete for boxes.
    """

    def __init__(
        self,
        path: str,
        *,
        least: float = 0.05,
        article: str = "{a} {name}",
        batch_size: int = 8,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`least`: smallest score of a box; `article`: the text for a name, {a} is a or an."""
        from transformers import AutoConfig, AutoModelForZeroShotObjectDetection

        self.least, self.article = least, article
        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        config = read(AutoConfig, path, KEY)
        self.model = network(AutoModelForZeroShotObjectDetection, path, KEY, self.hosting)
        self.processor = read_processor(locate(path, key=KEY), config)

    def __call__(
        self, pictures: Sequence[Tensor], names: Sequence[Sequence[str]]
    ) -> list[dict[str, list[Found]]]:
        """pictures: uint8 [H, W, 3], and the names to look for in each."""
        found: list[dict[str, list[Found]]] = [{} for _ in pictures]
        for name in dict.fromkeys(name for own in names for name in own):
            places = [place for place, own in enumerate(names) if name in own]
            for part in self.hosting.parts(places):
                boxes = self.look([pixels(pictures[place]) for place in part], name)
                for place, of_it in zip(part, boxes, strict=True):
                    found[place][name] = of_it
        return found

    @torch.no_grad()
    def look(self, pictures: Sequence[Tensor], name: str) -> list[list[Found]]:
        """The objects of one name in each picture, uint8 [H, W, 3]."""
        from PIL import Image

        images = [Image.fromarray(picture.numpy()) for picture in pictures]
        text = self.article.format(name=name, a="an" if name[:1].lower() in VOWELS else "a")
        texts = [[text]] * len(images)
        given = self.processor(images=images, text=texts, return_tensors="pt")
        out = self.model(**given.to(self.hosting.place, self.model.dtype))
        # bfloat16 would put the sides of a box 4 pixels apart.
        out.logits, out.pred_boxes = out.logits.float(), out.pred_boxes.float()
        said = self.processor.post_process_grounded_object_detection(
            out, threshold=self.least, target_sizes=[tuple(x.shape[:2]) for x in pictures]
        )
        return [list_found(one["scores"], one["boxes"]) for one in said]


class SegmentingDetector:
    """A Mask2Former of objects with names, GenEval's own kind: Swin-S trained on COCO's instances.

    The score is the probability of the name times the mean of the mask, for the 100 best pairs of
    mask and name; the box is that of the mask. GenEval runs it in MMDetection, on larger pictures.
    """

    def __init__(
        self,
        path: str,
        *,
        names: Mapping[str, str] = MappingProxyType({}),
        least: float = 0.05,
        batch_size: int = 8,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`names`: name in a prompt -> the model's name, if different; `least`: smallest score of
        an object.

        Raises ValueError for a name that the model does not know."""
        from transformers import (
            AutoModelForUniversalSegmentation,
            Mask2FormerImageProcessorPil,
        )

        self.least = least
        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.model = network(AutoModelForUniversalSegmentation, path, KEY, self.hosting)
        self.images = read(Mask2FormerImageProcessorPil, path, KEY)
        own = {name: number for number, name in self.model.config.id2label.items()}
        self.numbers = {asked: own[name] for asked, name in names.items() if name in own} | own
        if lost := sorted(names.keys() - self.numbers.keys()):
            raise ValueError(
                f"{NAMES}: the model does not know {names[lost[0]]}, given for "
                f"{lost[0]}; leave it out, or give a name of the model's classes"
            )

    def __call__(
        self, pictures: Sequence[Tensor], names: Sequence[Sequence[str]]
    ) -> list[dict[str, list[Found]] | Missing]:
        """pictures: uint8 [H, W, 3], and the names to look for in each; an unknown name affects
        only its picture."""
        found: dict[int, dict[str, list[Found]] | Missing] = {}
        for place, own in enumerate(names):
            if unknown := sorted({*own} - self.numbers.keys()):
                found[place] = Missing(f"the model does not know {unknown[0]}; map it in {NAMES}")
        places = [place for place in range(len(pictures)) if place not in found]
        for part in self.hosting.parts(places):
            wanted = [{self.numbers[name] for name in names[place]} for place in part]
            seen = self.look([pixels(pictures[place]) for place in part], wanted)
            for place, by_number in zip(part, seen, strict=True):
                found[place] = {n: by_number.get(self.numbers[n], []) for n in names[place]}
        return [found[place] for place in range(len(pictures))]

    @torch.no_grad()
    def look(
        self, pictures: Sequence[Tensor], wanted: Sequence[set[int]]
    ) -> list[dict[int, list[Found]]]:
        """Objects with the names `wanted` in pictures, uint8 [H, W, 3], by number of the name."""
        from PIL import Image

        images = [Image.fromarray(picture.numpy()) for picture in pictures]
        given = self.images(images, return_tensors="pt").to(self.hosting.place)
        out = self.model(**given.to(self.model.dtype))
        chances = out.class_queries_logits.float().softmax(-1)[..., :-1]
        room = given["pixel_values"].shape[-2:]
        filled = [(m.any(1).sum().item(), m.any(0).sum().item()) for m in given["pixel_mask"] > 0]
        found = []
        for place, (picture, own) in enumerate(zip(pictures, wanted, strict=True)):
            pairs = list_pairs(chances[place], own, least=self.least)
            queries = sorted({query for query, _, _ in pairs})
            high, wide = filled[place]
            masks = enlarge(out.masks_queries_logits[place, queries].float(), room)
            sized = enlarge(masks[:, :high, :wide], picture.shape[:2])
            found.append(list_masked(pairs, dict(zip(queries, sized, strict=True))))
        return found


def list_pairs(chances: Tensor, wanted: set[int], *, least: float) -> list[tuple[int, int, float]]:
    """Mask, name and probability of the pairs with a wanted name among the 100 best.

    chances: [Q, N]. A score is at most the probability, so none below `least` is kept.
    """
    best, places = chances.flatten().topk(min(100, chances.numel()))
    rows = zip(best.tolist(), places.tolist(), strict=True)
    pairs = [(*divmod(place, chances.shape[1]), chance) for chance, place in rows]
    return [pair for pair in pairs if pair[1] in wanted and pair[2] > least]


def enlarge(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Logits of masks, [M, h, w], at another size, [M, H, W]."""
    if not len(masks):
        return masks
    return torch.nn.functional.interpolate(masks[None], tuple(size), mode="bilinear")[0]


def list_masked(
    pairs: Sequence[tuple[int, int, float]], masks: Mapping[int, Tensor]
) -> dict[int, list[Found]]:
    """Objects by the number of their name. masks: logits of each query, [H, W]."""
    found: dict[int, list[Found]] = {}
    for query, number, chance in pairs:
        inside = masks[query] > 0
        if inside.any():
            score = chance * masks[query].sigmoid()[inside].mean().item()
            one = Found(score=score, box=box_of(inside), mask=inside.cpu())
            found.setdefault(number, []).append(one)
    return found


def box_of(mask: Tensor) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of the area of a mask [H, W]."""
    (rows,), (columns,) = mask.any(1).nonzero(as_tuple=True), mask.any(0).nonzero(as_tuple=True)
    ends = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    left, top, right, bottom = (float(end) for end in ends)
    return left, top, right, bottom


def list_found(scores: Tensor, boxes: Tensor) -> list[Found]:
    """scores: [N]; boxes: [N, 4] in pixels."""
    rows = zip(scores.float().tolist(), boxes.float().tolist(), strict=True)
    return [Found(score=score, box=tuple(box)) for score, box in rows]
