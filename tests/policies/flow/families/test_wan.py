"""Videos: their lengths, and the transformers and input images of Wan."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tandem import distributed
from tandem.policies.flow.components import Components, by_noise_level
from tandem.policies.flow.families.flux import Flux
from tandem.policies.flow.families.wan import Wan
from tandem.policies.flow.families.wan_image import WanImage


def without_weights(kind, **options):
    """An adapter that knows only the shapes of its networks."""
    adapter = kind(resolution=32, **options)
    adapter.folder = "wan"
    sizes = {"scale_factor_temporal": 4, "scale_factor_spatial": 8, "block_out_channels": (8,) * 4}
    adapter.vae = SimpleNamespace(config=SimpleNamespace(**sizes))
    config = SimpleNamespace(in_channels=16, out_channels=16, patch_size=(1, 2, 2))
    adapter.network = SimpleNamespace(config=config)
    return adapter


def test_frames_and_sides_of_a_film_make_its_latent_and_its_tokens():
    adapter = without_weights(Wan, width=64, frames=9)
    own = adapter.canvas(None)
    assert (own.latent_shape, own.tokens) == ((16, 3, 4, 8), 3 * 2 * 4)
    assert adapter.image_shape == (9, 32, 64, 3)
    other = adapter.canvas(48, 5)  # the width goes with the height
    assert (other.latent_shape, other.tokens) == ((16, 2, 6, 12), 2 * 3 * 6)


def test_frames_that_the_vae_does_not_make_are_refused():
    adapter = without_weights(Wan, frames=8)
    with pytest.raises(ValueError, match=r"model.adapter.frames=8 .* a multiple of 4 plus 1"):
        adapter.canvas(None)
    with pytest.raises(ValueError, match=r"evaluation.frames=6 does not fit"):
        adapter.canvas(None, 6)
    with pytest.raises(ValueError, match=r"evaluation.frames=5: this model makes pictures"):
        without_weights(Flux).canvas(None, 5)


def test_a_width_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"multiple of 16, and so must the width, 40"):
        without_weights(Wan, width=40, frames=5).canvas(None)


def with_index(folder, adapter, **said):
    """The adapter of a folder with this index."""
    (folder / "model_index.json").write_text(json.dumps(said))
    adapter.folder = folder
    adapter.fit(adapter.network)
    return adapter


def answer(part, rows):
    """A value that identifies the called network and its rows."""
    return part.weight.mean() * torch.ones(len(rows), 2) + rows[:, None]


def two_parts():
    parts = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for part, value in zip(parts, (100.0, 200.0), strict=True):
        nn.init.constant_(part.weight, value)
    return parts


def calls_of(parts, sigma):
    """The weight of each called network, and its number of rows."""
    seen = []

    def ask(part, rows):
        seen.append((part.weight.item(), len(rows)))
        return answer(part, rows)

    by_noise_level(parts, sigma, 0.875, ask)
    return seen


def test_each_row_is_asked_of_the_transformer_of_its_noise_level():
    sigma = torch.tensor([0.2, 0.9, 0.875, 0.874])
    said = by_noise_level(two_parts(), sigma, 0.875, answer)
    assert said[:, 0].tolist() == [200, 101, 102, 203]


def test_a_transformer_that_no_row_asks_has_a_gradient_of_0():
    parts, sigma = two_parts(), torch.tensor([0.2, 0.3])
    by_noise_level(parts, sigma, 0.875, answer).sum().backward()
    assert parts[0].weight.grad == 0 and parts[1].weight.grad > 0
    with torch.no_grad():  # no gradient is needed
        assert calls_of(parts, sigma) == [(200.0, 2)]


def test_rows_of_a_frozen_transformer_alone_leave_the_other_a_gradient_of_0():
    parts, sigma = two_parts(), torch.tensor([0.9, 0.95])
    parts[0].requires_grad_(False)
    said = by_noise_level(parts, sigma, 0.875, answer)
    assert said[:, 0].tolist() == [100, 101]
    said.sum().backward()
    assert parts[1].weight.grad == 0


def test_a_frozen_transformer_is_asked_about_its_own_rows_alone(monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    parts, sigma = two_parts(), torch.tensor([0.2, 0.3])
    parts[0].requires_grad_(False)
    assert calls_of(parts, sigma) == [(200.0, 2)]


def test_a_folder_says_how_many_transformers_it_has_and_whether_tokens_have_times(tmp_path):
    adapter = with_index(tmp_path, without_weights(Wan), boundary_ratio=0.875)
    assert adapter.transformers() == ("transformer", "transformer_2")
    assert not adapter.times_of_tokens
    adapter = with_index(tmp_path, without_weights(Wan), boundary_ratio=None, expand_timesteps=True)
    assert adapter.transformers() == ("transformer",) and adapter.times_of_tokens
    with pytest.raises(ValueError, match=r"two transformers, but a critic reads the states of one"):
        adapter.reader(Components({"transformer": nn.Identity(), "transformer_2": nn.Identity()}))


def test_each_transformer_has_its_own_guidance(tmp_path):
    adapter = with_index(tmp_path, without_weights(Wan, guidance_scale_2=2.0), boundary_ratio=0.875)
    sigma = torch.tensor([0.9, 0.875, 0.874])
    velocities = torch.ones(3, 1, 1, 1, 1), torch.zeros(3, 1, 1, 1, 1)
    assert adapter.guide(*velocities, scale=4.0, sigma=sigma).flatten().tolist() == [4, 4, 2]
    adapter.guidance_scale_2 = None
    assert adapter.guide(*velocities, scale=4.0, sigma=sigma).flatten().tolist() == [4, 4, 4]


def test_a_second_guidance_without_a_second_transformer_is_refused(tmp_path):
    one = without_weights(Wan, guidance_scale_2=3.0)
    with pytest.raises(ValueError, match=r"guidance_scale_2=3: .* has one transformer; leave it n"):
        with_index(tmp_path, one, boundary_ratio=None)
    with pytest.raises(ValueError, match=r"guidance_scale_2=0.5 must be at least 1"):
        without_weights(Wan, guidance_scale_2=0.5)


def test_films_that_begin_with_a_picture_have_the_frames_that_it_was_encoded_with(tmp_path):
    adapter = without_weights(WanImage, frames=9)
    adapter.times_of_tokens = False
    assert adapter.canvas(48, 9).latent_shape == (16, 3, 6, 6)
    with pytest.raises(ValueError, match=r"evaluation.frames=5: .* the 9 frames of model.adapter"):
        adapter.canvas(None, 5)
    with pytest.raises(ValueError, match="is a text-to-video model; set model=wan2_1_1_3b"):
        with_index(tmp_path, adapter)
    with_index(tmp_path, adapter, expand_timesteps=True)  # TI2V: a latent frame of its own
    assert adapter.canvas(48, 5).latent_shape == (16, 2, 6, 6)
