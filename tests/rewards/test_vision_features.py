"""Features of a vision model in a folder, as the distance to the nearest picture reads them."""

import pytest
import torch
from torch.testing import assert_close

from tandem.rewards.distance import MEAN, STD, NearestDistance
from tandem.types import Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Dinov2Model(Dinov2Config(**sizes, image_size=28, patch_size=14))
    place = tmp_path_factory.mktemp("vision")
    model.save_pretrained(place)
    return place, model.eval()


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
