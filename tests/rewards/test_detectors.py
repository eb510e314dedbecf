"""Detectors of transformers on random weights, compared with plain calls on one image and name."""

from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from tiny_clip import write_clip
from tiny_detectors import COCO, write_coco, write_grounding_dino, write_mask2former, write_owl

from tandem.config import build, compose
from tandem.rewards.detection import (
    SegmentingDetector,
    ZeroShotDetector,
    enlarge,
    list_masked,
    list_pairs,
)
from tandem.rewards.result import explain_reason
from tandem.types import Prompt


@pytest.fixture(scope="module")
def pictures():
    generator = torch.Generator().manual_seed(0)
    coarse = [torch.rand(1, 3, 3, 3, generator=generator) for _ in range(3)]
    sizes = [(64, 64), (48, 64), (80, 40)]
    return [
        (torch.nn.functional.interpolate(x, size, mode="bilinear")[0].permute(1, 2, 0) * 255).byte()
        for x, size in zip(coarse, sizes, strict=True)
    ]


def boxes_of(found):
    return sorted((round(one.score, 4), *(round(side, 2) for side in one.box)) for one in found)


def corners(box, height, width):
    """The corners of boxes given by centre and size, as shares of the image."""
    x, y, w, h = box
    sides = ((x - w / 2, width), (y - h / 2, height), (x + w / 2, width), (y + h / 2, height))
    return tuple(share * whole for share, whole in sides)


@pytest.mark.parametrize("write", [write_owl, write_grounding_dino])
def test_a_detector_of_words_finds_what_a_plain_call_for_each_name_finds(write, pictures, tmp_path):
    from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

    folder = str(write(tmp_path))
    names = [["cat"], ["dog", "elephant"], ["cat", "dog"]]
    got = ZeroShotDetector(folder, least=0.01, batch_size=2)(pictures, names)
    model = AutoModelForZeroShotObjectDetection.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder, use_fast=False)
    for picture, own, found in zip(pictures, names, got, strict=True):
        assert list(found) == own
        for name in own:
            image = Image.fromarray(picture.numpy())
            text = "an elephant" if name == "elephant" else f"a {name}"
            given = processor(images=image, text=[[text]], return_tensors="pt")
            with torch.no_grad():
                out = model(**given)
            scores = out.logits[0].sigmoid().amax(-1)
            want = [
                (round(score, 4), *(round(x, 2) for x in corners(box, *picture.shape[:2])))
                for score, box in zip(scores.tolist(), out.pred_boxes[0].tolist(), strict=True)
                if score > 0.01
            ]
            flat = [number for row in sorted(want) for number in row]
            assert want
            assert [x for row in boxes_of(found[name]) for x in row] == pytest.approx(
                flat, abs=0.02
            )


def test_boxes_are_as_fine_as_float32_where_the_network_is_not(pictures, tmp_path):
    detector = ZeroShotDetector(str(write_owl(tmp_path)), least=0.0, dtype="bfloat16")
    (found,) = detector(pictures[:1], [["cat"]])
    sides = torch.tensor([one.box for one in found["cat"]])
    assert len(sides) and (sides != sides.bfloat16().float()).any()


def test_a_detector_of_masks_scores_a_name_by_its_probability_and_its_mask(pictures, tmp_path):
    from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessorPil

    folder = str(write_mask2former(tmp_path))
    names = {"computer mouse": "mouse"}
    detector = SegmentingDetector(folder, names=names, least=0.0, batch_size=2)
    got = detector(pictures, [["cat", "computer mouse"]] * 3)
    model = Mask2FormerForUniversalSegmentation.from_pretrained(folder).eval()
    processor = Mask2FormerImageProcessorPil.from_pretrained(folder)
    for picture, found in zip(pictures, got, strict=True):
        given = processor(Image.fromarray(picture.numpy()), return_tensors="pt")
        with torch.no_grad():
            out = model(pixel_values=given["pixel_values"])
        for name, number in (("cat", 0), ("computer mouse", 2)):
            want = []
            queries = zip(out.class_queries_logits[0], out.masks_queries_logits[0], strict=True)
            for logits, mask in queries:
                for size in ((64, 64), tuple(picture.shape[:2])):
                    mask = torch.nn.functional.interpolate(
                        mask.view(1, 1, *mask.shape), size, mode="bilinear"
                    )[0, 0]
                if (mask > 0).any():
                    sure = mask.sigmoid()[mask > 0].mean().item()
                    want.append(logits.softmax(0)[number].item() * sure)
            assert want
            scores = sorted(one.score for one in found[name])
            assert scores == pytest.approx(sorted(want), abs=1e-5)
            for one in found[name]:
                rows, columns = one.mask.nonzero().T
                box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                assert one.box == tuple(float(side) for side in box)
                assert one.mask.shape == picture.shape[:2]


def test_a_name_that_the_model_does_not_know_is_told_of_its_picture_alone(pictures, tmp_path):
    detector = SegmentingDetector(str(write_mask2former(tmp_path)))
    unknown, known = detector(pictures[:2], [["cat", "unicorn"], ["cat"]])
    said = explain_reason("geneval", str(unknown))
    assert said.endswith("does not know unicorn; map it in reward.geneval.function.detector.names")
    assert list(known) == ["cat"]


def test_only_what_is_asked_for_and_may_count_is_enlarged():
    chances = torch.tensor([[0.6, 0.3, 0.1], [0.02, 0.9, 0.08]])  # two masks, three names
    assert list_pairs(chances, {0}, least=0.05) == [(0, 0, pytest.approx(0.6))]
    found = [pair[:2] for pair in list_pairs(chances, {1, 2}, least=0.09)]
    assert found == [(1, 1), (0, 1), (0, 2)]
    assert list_masked([], {}) == {} and not len(enlarge(torch.zeros(0, 4, 4), (64, 64)))


def test_every_object_of_the_benchmark_has_a_name_of_the_model():
    """GenEval's evaluation/object_names.txt against the names saved in the checkpoint."""
    file = Path(__file__).parents[2] / "conf/reward/geneval.yaml"
    told = yaml.safe_load(file.read_text())["geneval"]["function"]["detector"]["names"]
    words = {"motorbike": "motorcycle", "aeroplane": "airplane", "sofa": "couch",
             "mouse": "computer mouse", "pottedplant": "potted plant",
             "diningtable": "dining table", "tvmonitor": "tv", "remote": "tv remote",
             "keyboard": "computer keyboard"}  # fmt: skip
    assert len({*COCO}) == 80
    assert [told.get(words.get(own, own), own) for own in COCO] == [*COCO]


def test_a_name_of_the_model_that_it_does_not_have_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"^reward\.\*\.function\.detector\.names: the model does not know mause"
    ):
        SegmentingDetector(str(write_mask2former(tmp_path)), names={"computer mouse": "mause"})


@pytest.mark.parametrize(
    ("name", "write"), [("geneval", write_coco), ("geneval_zero_shot", write_owl)]
)
def test_a_row_of_the_benchmark_is_judged_by_random_weights(name, write, pictures, tmp_path):
    paths = {"detector": write(tmp_path / "detector"), "colours": write_clip(tmp_path / "clip")}
    told = [f"reward.{name}.function.{part}.path={path}" for part, path in paths.items()]
    limits = [f"reward.{name}.function.limits.{x}=0" for x in ("threshold", "counting_threshold")]
    cfg = compose(["model=tiny_flow", f"reward={name}", *told, *limits])
    reward = build(cfg.reward, "reward")[name]
    row = {"tag": "colors", "include": [{"class": "cat", "count": 1, "color": "red"}]}
    prompt = Prompt(id=0, source="s", text="a photo of a red cat", fields=row)
    scores, faults = reward(pictures, [prompt] * 3)
    assert not faults and all(score is not None and score <= 1 for score in scores)
