"""Degradation of images while a reward rises is measured and reported."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tandem import rng
from tandem.config import ConfigError, check, compose
from tandem.data.shapes_drawn import renderings
from tandem.evaluation.image_collapse import Collapse, colour_entropy, dark, edge_density
from tandem.record.galleries import distance

BLACK = torch.zeros(4, 4, 3, dtype=torch.uint8)
HALF = BLACK.clone()
HALF[:, 2:] = 255  # the right half is white
FIRST = {
    "eval/reward": 0.4,
    "eval/diversity": 0.2,
    "eval/colour_entropy": 1.0,
    "eval/edge_density": 0.25,
    "eval/dark": 0.6,
    "eval/distance_to_start": 0.0,
}
# The first and last evaluations of runs of the embedded flow, 30 iterations each.
WARM = FIRST | {
    "eval/reward": 0.464, "eval/diversity": 0.177, "eval/colour_entropy": 1.070,
    "eval/edge_density": 0.243, "eval/dark": 0.651,
}  # fmt: skip
HEALTHY = {
    "eval/reward": 0.681, "eval/diversity": 0.090, "eval/colour_entropy": 0.774,
    "eval/edge_density": 0.154, "eval/dark": 0.766, "eval/distance_to_start": 0.231,
}  # fmt: skip
FILLED = {  # every pixel in the colour that was asked for
    "eval/reward": 0.988, "eval/diversity": 0.165, "eval/colour_entropy": 1.152,
    "eval/edge_density": 0.545, "eval/dark": 0.001, "eval/distance_to_start": 0.997,
}  # fmt: skip
BLANK = {  # small as a JPEG
    "eval/reward": -0.738, "eval/diversity": 0.021, "eval/colour_entropy": 0.001,
    "eval/edge_density": 0.0, "eval/dark": 1.0, "eval/distance_to_start": 0.524,
}  # fmt: skip


def test_a_blank_picture_has_one_colour_and_no_edge():
    assert (dark(BLACK), colour_entropy(BLACK), edge_density(BLACK)) == (1.0, 0.0, 0.0)


def test_worked_example():
    assert dark(HALF) == 0.5
    assert colour_entropy(HALF).item() == pytest.approx(math.log(2))
    assert edge_density(HALF) == 0.25  # the column left of the border
    assert edge_density(HALF.transpose(0, 1)) == 0.25
    assert distance(HALF, BLACK).item() == pytest.approx(2 * math.sqrt(0.5))
    assert distance(HALF, HALF) == 0


def test_one_bright_channel_makes_a_pixel_no_dark_one():
    blue = BLACK.clone()
    blue[..., 2] = torch.arange(94, 98).byte()  # 96 is a mean of 32
    assert dark(blue) == 0.5


def test_measures_agree_with_loops_over_pixels():
    pictures = torch.cat([one[:2] for one in renderings().values()])
    noise = 40 * rng.normal(rng.key("noise"), tuple(pictures.shape))
    pictures = (pictures.float() + noise).clamp(0, 255).to(torch.uint8)
    rows = [picture.tolist() for picture in pictures]
    for measure, oracle in (
        (dark, dark_by_hand), (colour_entropy, entropy_by_hand), (edge_density, edges_by_hand),
    ):  # fmt: skip
        want = torch.tensor([oracle(row) for row in rows], dtype=torch.float64)
        assert want.std() > 0
        assert_close(measure(pictures), want)
        assert_close(measure(pictures[3]), want[3])


def dark_by_hand(rows):
    pixels = [sum(pixel) / 3 < 32 for row in rows for pixel in row]
    return sum(pixels) / len(pixels)


def entropy_by_hand(rows):
    boxes = [tuple(level // 64 for level in pixel) for row in rows for pixel in row]
    shares = [boxes.count(box) / len(boxes) for box in set(boxes)]
    return -sum(share * math.log(share) for share in shares)


def edges_by_hand(rows):
    size, found = len(rows), 0
    for y in range(size):
        for x in range(size):
            near = [(y + 1, x)] * (y + 1 < size) + [(y, x + 1)] * (x + 1 < size)
            found += any(
                abs(a - b) >= 64
                for v, u in near
                for a, b in zip(rows[y][x], rows[v][u], strict=True)
            )
    return found / size**2


def test_collapses_that_were_seen_are_told_from_a_run_that_learnt():
    limits = Collapse()
    assert limits.warning(WARM, HEALTHY) is None
    said = limits.warning(WARM | {"eval/reward": 0.243}, FILLED)
    assert "dark pixels 0.651 -> 0.001" in said
    assert "distance to the start 0.997 at a first diversity of 0.177" in said
    said = limits.warning(WARM | {"eval/reward": -0.852}, BLANK)
    for sign in ("diversity 0.177 -> 0.021", "colour entropy", "edge density", "dark pixels"):
        assert sign in said
    assert "algorithm.kl.coef" in said


@pytest.mark.parametrize(
    ("name", "metric", "beyond", "within"),
    [
        ("diversity", "eval/diversity", 0.039, 0.041),
        ("colour_entropy", "eval/colour_entropy", 0.49, 0.51),
        ("edge_density", "eval/edge_density", 0.09, 0.11),
        ("dark", "eval/dark", 0.86, 0.84),
        ("dark", "eval/dark", 0.34, 0.36),
        ("distance", "eval/distance_to_start", 0.61, 0.59),
    ],
)
def test_each_limit_is_a_limit_and_null_is_none(name, metric, beyond, within):
    better = FIRST | {"eval/reward": 0.5}
    assert Collapse().warning(FIRST, better | {metric: within}) is None
    assert Collapse().warning(FIRST, better | {metric: beyond}) is not None
    assert replace(Collapse(), **{name: None}).warning(FIRST, better | {metric: beyond}) is None


def test_nothing_is_said_where_the_reward_does_not_rise_or_nothing_is_known():
    fallen = FIRST | {"eval/colour_entropy": 0.1}
    assert Collapse().warning(FIRST, fallen) is None
    assert Collapse().warning(FIRST, fallen | {"eval/reward": math.nan}) is None
    assert Collapse().warning({"eval/reward": 0.4}, fallen | {"eval/reward": 0.5}) is None
    unknown = FIRST | {"eval/colour_entropy": None, "eval/reward": 0.5}
    assert Collapse().warning(FIRST, unknown) is None


def test_a_limit_below_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"collapse\.dark=-1\.0: must not be negative"):
        check(compose(["model=tiny_flow", "evaluation.collapse.dark=-1"]))
