"""Rewards of images: scores of known images, and the diversity of samples."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from tandem import rng
from tandem.config import build, compose
from tandem.data.shapes_drawn import COLOURS, palette, renderings
from tandem.metrics import reduce_metrics
from tandem.rewards import Reward, Rewards
from tandem.rewards.images import (
    colour_share,
    crisp_rendering,
    diversity,
    jpeg_compressibility,
    jpeg_incompressibility,
    match,
    nearest_rendering,
    squared_errors,
)
from tandem.types import Prompt

DRAWN = renderings()
PICTURES = torch.cat([*DRAWN.values()])  # [216, 16, 16, 3]
TEXTS = [text for text, pictures in DRAWN.items() for _ in pictures]


def prompt(text):
    return Prompt(id=0, source="test", text=text)


def judge(pictures, texts, **numbers):
    return nearest_rendering(
        list(pictures), [prompt(text) for text in texts], renderings=DRAWN, **numbers
    )


def noisy(std):
    """Every rendering with Gaussian noise on the scale from -1 to 1, not rounded: [216, D]."""
    noise = rng.normal(rng.key("noise"), tuple(PICTURES.shape)).double()
    return (PICTURES.double() + 127.5 * std * noise).flatten(1)


def mean_match(pictures, *, smooth):
    """The mean score of images that need not be bytes: [216, D]."""
    own = torch.tensor([[a == b for b in TEXTS] for a in TEXTS])
    error = squared_errors(pictures, PICTURES.flatten(1).double())
    return match(error, own, smooth=smooth, width=0.1, limit=0.12).mean().item()


def test_every_rendering_is_worth_exactly_one():
    assert judge(PICTURES, TEXTS) == [1.0] * 216
    assert judge(PICTURES, TEXTS, smooth=0.0) == [1.0] * 216


@pytest.mark.parametrize(("std", "smooth_part"), [(0.1, 0.95), (0.3, 0.70)])
def test_noise_costs_what_it_adds_to_the_error_and_the_shape_stays_right(std, smooth_part):
    assert mean_match(noisy(std), smooth=0.5) == pytest.approx(smooth_part, abs=0.005)
    assert mean_match(noisy(std), smooth=0.0) == 1.0


def test_a_picture_of_another_prompt_is_wrong_and_still_worth_something():
    [score] = judge(DRAWN["red circle"][:1], ["red square"])
    [hard] = judge(DRAWN["red circle"][:1], ["red square"], smooth=0.0)
    assert 0.3 < score < 0.5
    assert hard == 0.0
    [far] = judge(DRAWN["red circle"][:1], ["green square"])
    assert far < 0.25


def test_a_worked_example():
    rendering = torch.zeros(1, 1, 1, 3, dtype=torch.uint8)
    other = torch.full((1, 1, 1, 3), 255, dtype=torch.uint8)
    picture = torch.tensor([[[51, 0, 0]]], dtype=torch.uint8)  # 0.4 off in one of three channels
    numbers = {"smooth": 0.25, "width": 0.1, "limit": 0.12}
    [score] = nearest_rendering(
        [picture], [prompt("dark")], renderings={"light": other, "dark": rendering}, **numbers
    )
    assert score == pytest.approx(0.25 * 2.718281828 ** (-0.16 / 3 / 0.1) + 0.75)


def test_a_right_shape_with_too_much_error_is_not_right():
    assert mean_match(noisy(0.32), smooth=0.0) > 0.95  # an error of 0.102, give or take 0.005
    assert mean_match(noisy(0.37), smooth=0.0) < 0.05  # of 0.137


def test_speckle_in_the_ground_costs_as_much_as_anywhere():
    clean = DRAWN["red circle"][4]
    speckled = clean.clone()
    speckled[0, ::2] = 255 - speckled[0, ::2]
    inside = clean.clone()
    inside[8, 4:12] = 255 - inside[8, 4:12]
    scores = judge([clean, speckled, inside], ["red circle"] * 3)
    assert scores[0] == 1.0
    assert scores[1] < 0.92 and scores[1] == pytest.approx(scores[2], abs=0.01)


def test_right_is_what_scores_a_half_and_more():
    share = rng.uniform(rng.key("mix"), (600, 1, 1, 1))
    other = PICTURES[rng.permutation(rng.key("other"), 600) % 216].double()
    blend = torch.lerp(PICTURES[torch.arange(600) % 216].double(), other, share)
    pictures = blend.round().to(torch.uint8)
    texts = [TEXTS[i % 216] for i in range(600)]
    scores = torch.tensor(judge(pictures, texts))
    hard = torch.tensor(judge(pictures, texts, smooth=0.0))
    assert 100 < hard.sum() < 500
    assert torch.equal(scores >= 0.5, hard == 1.0)


def test_no_cut_of_a_batch_changes_a_score():
    pictures = rng.bits(rng.key("bytes"), (64, 16, 16, 3)).remainder(256).to(torch.uint8)
    pictures[:32] = PICTURES[:32] // 2 + pictures[:32] // 2
    together = judge(pictures, TEXTS[:64])
    assert together == [judge([p], [t])[0] for p, t in zip(pictures, TEXTS, strict=False)]


def test_a_prompt_without_renderings_is_missing_and_the_others_are_not():
    assert judge(PICTURES[:2], ["an astronaut", "red circle"]) == [None, 1.0]
    assert judge(PICTURES[:1], ["an astronaut"]) == [None]


def test_what_is_no_picture_of_that_size_is_missing_with_its_reason():
    reward = Reward(partial(nearest_rendering, renderings=DRAWN))
    for wrong, said in (
        ("text", "a picture is a tensor, not str"),
        (PICTURES[0].float(), "not torch.float32"),
        (PICTURES[0, 0], "uint8 [H, W, 3]"),
        (PICTURES[0].permute(2, 0, 1), "[3, 16, 16]"),
        (PICTURES[0, :8], "has 8 x 16 pixels, but its rendering 16 x 16"),
    ):
        values, faults = reward([wrong], [prompt("red circle")])
        assert values == [None]
        assert said in next(iter(faults))


def crisp(pictures, texts):
    return crisp_rendering(list(pictures), [prompt(text) for text in texts], renderings=DRAWN)


def ragged(picture, pixels):
    """The image with that many pixels around the shape painted in its colour: [16, 16, 3]."""
    inside = picture.amax(-1) > 127
    around = torch.nn.functional.max_pool2d(inside[None].float(), 3, 1, 1)[0].bool() & ~inside
    chosen = around.nonzero()[:: max(1, int(around.sum()) // pixels)][:pixels]
    painted = picture.clone()
    painted[chosen[:, 0], chosen[:, 1]] = picture[8, 8]
    return painted


def test_a_crisp_rendering_is_worth_one_and_one_of_another_prompt_nothing():
    assert crisp(PICTURES, TEXTS) == [1.0] * 216
    swapped = [text.replace("circle", "square") for text in TEXTS if "circle" in text]
    circles = [p for p, text in zip(PICTURES, TEXTS, strict=True) if "circle" in text]
    assert max(crisp(circles, swapped)) < 0.01


def test_what_is_between_a_circle_and_a_square_earns_more_the_nearer_it_is():
    square, circle = (DRAWN[f"blue {shape}"][4].double() for shape in ("square", "circle"))
    way = [torch.lerp(square, circle, i / 8).round().to(torch.uint8) for i in range(9)]
    paid = crisp(way, ["blue circle"] * 9)
    assert paid == sorted(paid) and paid[0] < 0.01 < 0.05 < paid[2] and paid[8] == 1.0
    assert max(later - sooner for sooner, later in pairwise(paid)) > 0.5  # it becomes right
    old = judge(way, ["blue circle"] * 9)
    assert old[0] > 0.4  # the reward of a square there


def test_a_ragged_circle_is_right_by_the_nearest_rendering_and_not_by_the_crisp_one():
    picture = ragged(DRAWN["red circle"][4], 8)
    assert judge([picture], ["red circle"])[0] > 0.8  # the earlier reward
    assert crisp([picture], ["red circle"])[0] < 0.5
    assert crisp([ragged(DRAWN["red circle"][4], 2)], ["red circle"])[0] == 1.0


def jpeg(picture):
    return jpeg_incompressibility(picture, prompt("?"))


def test_jpeg_size_is_in_thousands_of_bytes_and_grows_with_detail():
    blank = torch.full((64, 64, 3), 128, dtype=torch.uint8)
    noise = rng.bits(rng.key("jpeg"), (64, 64, 3)).remainder(256).to(torch.uint8)
    assert 0.6 < jpeg(blank) < 1.0  # headers, and next to nothing
    assert jpeg(noise) > 6 * jpeg(blank)
    assert jpeg_compressibility(noise, prompt("?")) == -jpeg(noise)
    assert jpeg_incompressibility(noise, prompt("?"), quality=30) < jpeg(noise) / 2


def test_jpeg_size_is_that_of_the_file(tmp_path):
    from PIL import Image

    path = tmp_path / "a.jpg"
    Image.fromarray(PICTURES[100].numpy()).save(path, quality=95)
    assert jpeg(PICTURES[100]) * 1000 == path.stat().st_size


def share(picture, text):
    return colour_share(picture, prompt(text), palette=palette())


def test_colour_share_is_the_area_of_the_colour_and_a_full_frame_hacks_it():
    covered = (DRAWN["red square"][13][:, :, 0] > 127).double().mean().item()
    assert share(DRAWN["red square"][13], "Red, square") == pytest.approx(covered)
    assert share(DRAWN["red square"][13], "green square") == 0.0
    full = torch.tensor(palette()["green"], dtype=torch.uint8).expand(16, 16, 3)
    assert share(full, "green square") == 1.0


@pytest.mark.parametrize("colour", COLOURS)
def test_colour_share_counts_as_a_loop_over_pixels_does(colour):
    noise = rng.bits(rng.key("pixels", colour), (16, 16, 3)).remainder(256)
    count = 0
    for pixel in noise.view(-1, 3).tolist():
        far = {
            name: sum((a - b) ** 2 for a, b in zip(pixel, rgb, strict=True))
            for name, rgb in palette().items()
        }
        count += all(far[colour] < other for name, other in far.items() if name != colour)
    assert share(noise.to(torch.uint8), f"a {colour} thing") == count / 256


def test_two_named_colours_count_both_and_none_is_no_score():
    half = torch.cat([DRAWN["red circle"][4, :8], DRAWN["blue circle"][4, 8:]])
    both = share(half, "red circle on a blue circle")
    assert both == share(half, "red") + share(half, "blue") > share(half, "red") > 0
    assert share(half, "a circle") is None
    assert share(half, "hundred bluebells") is None
    chat = Prompt(id=0, source="test", messages=({"role": "user", "content": "red"},))
    assert colour_share(half, chat, palette=palette()) is None


def spread(outputs, group):
    return reduce_metrics({"diversity": diversity(outputs, torch.tensor(group))}).get("diversity")


def test_diversity_is_the_mean_over_prompts_of_the_spread_of_each_pixel():
    levels = [torch.full((2, 2, 3), level, dtype=torch.uint8) for level in (0, 255, 100, 100, 7)]
    # 0 and 255 are -1 and 1: their unbiased std is sqrt(2); the group of one says nothing.
    assert spread(levels, [5, 5, 3, 3, 9]) == pytest.approx(2**0.5 / 2)
    assert spread(levels[:2], [0, 0]) == pytest.approx(2**0.5)
    assert spread(levels[2:4], [0, 0]) == 0.0


def test_diversity_does_not_see_the_order_of_rows_nor_what_differs_between_prompts():
    rows = [4, 30, 60, 3, 35, 70]
    group = [0, 1, 2, 0, 1, 2]
    one = spread([PICTURES[i] for i in rows], group)
    again = spread([PICTURES[i] for i in reversed(rows)], group[::-1])
    assert one == again > 0
    assert spread([PICTURES[i] for i in (0, 0, 40, 40)], [0, 0, 1, 1]) == 0.0


def test_diversity_of_nothing_is_no_number():
    assert spread([PICTURES[0]], [0]) is None
    assert spread([], []) is None


def test_the_options_score_pictures_as_composed():
    names = ["nearest_rendering", "jpeg_compressibility", "jpeg_incompressibility", "colour_share"]
    cfg = compose([f"reward=[{','.join(names)}]", "reward.colour_share.weight=0.5"])
    rewards = Rewards(build(cfg.reward, "reward"))
    scores = rewards(list(PICTURES[:20]), [prompt(text) for text in TEXTS[:20]])
    assert list(scores.parts) == names
    assert scores.parts["nearest_rendering"].tolist() == [1.0] * 20
    assert torch.equal(
        scores.parts["jpeg_compressibility"], -scores.parts["jpeg_incompressibility"]
    )
    expected = 1 + 0.5 * scores.parts["colour_share"]
    torch.testing.assert_close(scores.total, expected)
    assert rewards.pop_faults() == {}
