"""Rewards of videos: image rewards frame by frame, and properties of videos alone."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.config import ConfigError, check, compose
from tandem.contracts import declare
from tandem.evaluation.image_collapse import dark
from tandem.rewards import Reward
from tandem.rewards.films import MEASURED, motion_smoothness, select_frames
from tandem.rewards.images import spread
from tandem.rewards.signature import batched, groupwise
from tandem.types import Prompt

PROMPTS = [Prompt(id=i, source="x", text="a cat") for i in range(2)]


def film(*levels, side=2):
    return torch.tensor(levels, dtype=torch.uint8)[:, None, None, None].repeat(1, side, side, 3)


def bright(output, prompt):
    assert output.shape == (2, 2, 3)
    return output.double().mean().item()


def test_a_reward_of_pictures_is_the_mean_over_the_frames_of_a_film():
    films = [film(0, 10, 50), film(90, 0, 0)]
    assert Reward(bright)(films, PROMPTS)[0] == [20.0, 30.0]
    assert Reward(bright, frames=2)(films, PROMPTS)[0] == [25.0, 45.0]  # the first and the last
    assert Reward(bright, frames=9)(films, PROMPTS)[0] == [20.0, 30.0]


def test_the_best_frame_or_those_above_0_can_count_instead():
    films = [film(0, 10, 50), film(0, 0, 0)]
    assert Reward(bright, of_frames="best")(films, PROMPTS)[0] == [50.0, 0.0]
    assert Reward(bright, of_frames="positive")(films, PROMPTS)[0] == [30.0, 0.0]


def test_rewards_of_lists_and_of_groups_see_the_same_frame_of_all():
    films, group = [film(0, 10), film(6, 30)], torch.zeros(2, dtype=torch.int64)
    ask = batched(lambda outputs, prompts: [x.double().mean().item() for x in outputs])
    assert Reward(ask)(films, PROMPTS)[0] == [5.0, 18.0]
    best = groupwise(lambda outputs, prompt: [float(x.max() == torch.stack(outputs).max()) for x in outputs])  # fmt: skip  # noqa: E501
    assert Reward(best)(films, PROMPTS, group)[0] == [0.0, 1.0]


def test_a_frame_without_a_number_leaves_its_film_without_one():
    first, second = film(0, 10), film(20, 30)
    numbers, faults = Reward(lambda output, prompt: None if output[0, 0, 0] == 10 else 1.0)(
        [first, second], PROMPTS
    )
    assert numbers == [None, 1.0] and sum(faults.values()) == 1


def test_a_reward_of_films_sees_all_of_one():
    length = declare(of_films=True)(lambda output, prompt: float(len(output)))
    assert Reward(length)([film(0, 10, 20), film(0, 1, 2)], PROMPTS)[0] == [3.0, 3.0]


def test_motion_is_smooth_where_frames_are_what_their_neighbours_foretell():
    assert motion_smoothness(film(0, 50, 100, 150), PROMPTS[0]) == 1.0
    assert motion_smoothness(film(7, 7, 7), PROMPTS[0]) == 1.0
    assert motion_smoothness(film(0, 255, 0), PROMPTS[0]) == pytest.approx(-1.0)
    assert motion_smoothness(film(0, 51, 0), PROMPTS[0]) == pytest.approx(1 - 2 * 51 / 255)
    for short in (film(0, 1), film(0)[0]):
        with pytest.raises(ValueError, match="at least 3 frames"):
            motion_smoothness(short, PROMPTS[0])


def test_frames_are_the_first_the_last_and_evenly_spread_ones():
    shown = select_frames(film(*range(0, 90, 10)), 3)
    assert shown[:, 0, 0, 0].tolist() == [0, 40, 80]


def test_films_differ_as_their_pixels_do():
    assert spread([film(0, 0), film(0, 255)]) == pytest.approx(2**0.5 / 2)
    assert dark(torch.stack([film(0, 255)])).tolist() == [[1.0, 0.0]]


WAN = "model=wan2_1_1_3b data.path=prompts.txt"
PICKED = "reward=jpeg_compressibility reward.jpeg_compressibility.frames=4"
BEST = "reward=jpeg_compressibility reward.jpeg_compressibility.of_frames=best"
WHOLE = "reward=motion_smoothness reward.motion_smoothness.frames=4"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "model=tiny_flow reward=motion_smoothness",
            "reward=motion_smoothness judges films, and model=tiny_flow makes none; choose",
        ),
        (
            f"model=tiny_flow {PICKED}",
            "reward.jpeg_compressibility.frames=4: model=tiny_flow makes no films; set it to null",
        ),
        (
            f"model=tiny_flow {BEST}",
            "reward.jpeg_compressibility.of_frames=best: model=tiny_flow makes no films; set it to "
            "mean",
        ),
        (
            f"{WAN} {WHOLE}",
            "reward.motion_smoothness.frames=4: it reads whole films; set it to null",
        ),
    ],
)
def test_what_is_asked_of_films_alone_is_refused_elsewhere(line, wanted):
    with pytest.raises(ConfigError) as refused:
        check(compose(line.split()))
    assert wanted in str(refused.value)


@pytest.mark.parametrize("line", [f"{WAN} {PICKED}", f"{WAN} reward=motion_smoothness"])
def test_films_are_judged_as_a_whole_or_by_chosen_frames(line):
    check(compose(line.split()))


@pytest.mark.parametrize("frames", [None, 3, 16])
def test_the_spread_is_the_std_of_each_pixel(frames):
    shape = (5, *(() if frames is None else (frames,)), 6, 4, 3)
    outputs = torch.randint(256, shape, dtype=torch.uint8)
    wanted = outputs.double().div(127.5).std(0).mean()
    torch.testing.assert_close(spread([*outputs]), wanted, atol=1e-14, rtol=1e-12)


def test_the_spread_of_long_films_is_that_of_chosen_frames_and_holds_few_of_them():
    films = [torch.randint(256, (64, 32, 32, 3), dtype=torch.uint8) for _ in range(24)]
    chosen = torch.stack([select_frames(film, MEASURED) for film in films])
    wanted = chosen.double().div(127.5).std(0).mean()
    with Largest() as largest:
        torch.testing.assert_close(spread(films), wanted, atol=1e-14, rtol=1e-12)
    assert largest.numbers <= MEASURED * 32 * 32 * 3


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is created."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype != torch.uint8:
            self.numbers = max(self.numbers, made.numel())
        return made
