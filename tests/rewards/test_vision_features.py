"""Features of a vision model in a folder, as used for the distance to the nearest image."""

import pytest
import torch
from tiny_vision import write_vision
from torch.testing import assert_close

from tandem.data.images import show
from tandem.rewards.distance import NearestDistance
from tandem.rewards.likeness import DinoDiversity, DinoSimilarity
from tandem.rewards.vision import MEAN, STD
from tandem.types import IMAGE, Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import Dinov2Model

    place = write_vision(tmp_path_factory.mktemp("vision"))
    return place, Dinov2Model.from_pretrained(place).eval()


def test_features_are_those_of_the_model_at_its_own_size(folder):
    place, model = folder
    generator = torch.Generator().manual_seed(1)
    shown = [torch.randint(256, (28, 28, 3), generator=generator).byte() for _ in range(3)]
    got = NearestDistance(str(place), side=28, batch_size=2, device="cpu").features(shown)
    given = torch.stack(shown).permute(0, 3, 1, 2) / 255
    given = (given - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        want = model(pixel_values=given).pooler_output
    assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_a_picture_of_another_size_is_seen_as_the_picture_that_it_becomes(folder):
    """Near an edge bicubic interpolation leaves the range of pixel values."""
    levels = torch.zeros(1, 3, 16, 16)
    levels[..., 4:12, 4:12] = 255
    size = {"size": (28, 28), "mode": "bicubic", "antialias": True}
    became = torch.nn.functional.interpolate(levels, **size)
    assert became.min() < -5 and became.max() > 260
    small, own = (x.round().clamp(0, 255).byte()[0].permute(1, 2, 0) for x in (levels, became))
    features = NearestDistance(str(folder[0]), side=28, device="cpu").features
    assert_close(features([small]), features([own]), atol=1e-5, rtol=1e-5)


def test_copies_are_at_no_distance_and_a_folder_that_is_none_is_one_line(folder):
    distance = NearestDistance(str(folder[0]), side=28, device="cpu")
    red, blue = (torch.zeros(14, 14, 3, dtype=torch.uint8) for _ in range(2))
    red[..., 0], blue[..., 2] = 255, 255
    prompt = Prompt(id=0, source="s", text="?")
    first, second, other = distance([red, red, blue], prompt)
    assert first == pytest.approx(0, abs=1e-5) and second == pytest.approx(0, abs=1e-5)
    assert other > 1e-4
    with pytest.raises(ValueError, match="nearest_distance"):
        NearestDistance("nowhere", device="cpu")


def test_an_edit_is_like_what_its_prompt_shows_and_a_prompt_that_shows_nothing_has_no_score(folder):
    place, _ = folder
    generator = torch.Generator().manual_seed(2)
    shown = [torch.randint(256, (28, 28, 3), generator=generator).byte() for _ in range(3)]
    prompts = [
        Prompt(id=0, source="s", text=2 * IMAGE, images=(show(shown[0]), show(shown[1]))),
        Prompt(id=1, source="s", text="?"),
        Prompt(id=2, source="s", text=IMAGE, images=(show(shown[1]),)),
    ]
    reward = DinoSimilarity(str(place), side=28, batch_size=2, device="cpu")
    got = reward([shown[2], shown[0], shown[1]], prompts)
    own = torch.nn.functional.normalize(reward.vision.features(shown), dim=-1)
    assert got[0] == pytest.approx((own[2] @ own[0] + own[2] @ own[1]).item() / 2, abs=1e-5)
    assert got[1] is None
    assert got[2] == pytest.approx(1, abs=1e-5)


def test_diversity_is_what_a_picture_does_not_share_with_the_others(folder):
    place, _ = folder
    generator = torch.Generator().manual_seed(3)
    shown = [torch.randint(256, (28, 28, 3), generator=generator).byte() for _ in range(3)]
    reward = DinoDiversity(str(place), side=28, batch_size=2, device="cpu")
    prompt = Prompt(id=0, source="s", text="?")
    x, y, z = torch.nn.functional.normalize(reward.vision.features(shown), dim=-1)
    want = [1 - (a @ b + a @ c).item() / 2 for a, b, c in ((x, y, z), (y, x, z), (z, x, y))]
    assert reward(shown, prompt) == pytest.approx(want, abs=1e-5)
    assert reward(shown[:1] * 2, prompt) == pytest.approx([0, 0], abs=1e-5)
    assert reward(shown[:1], prompt) == [None]
