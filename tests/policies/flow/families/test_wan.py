"""Films: how long they may be, and what of Wan is refused."""

import json
from types import SimpleNamespace

import pytest

from tandem.policies.flow.families.flux import Flux
from tandem.policies.flow.families.wan import Wan


def unloaded(kind, **options):
    """An adapter that knows the shapes of its networks and nothing else."""
    adapter = kind(resolution=32, **options)
    adapter.folder = "wan"
    sizes = {"scale_factor_temporal": 4, "scale_factor_spatial": 8, "block_out_channels": (8,) * 4}
    adapter.vae = SimpleNamespace(config=SimpleNamespace(**sizes))
    config = SimpleNamespace(in_channels=16, patch_size=(1, 2, 2))
    adapter.network = SimpleNamespace(config=config)
    return adapter


def test_frames_and_sides_of_a_film_make_its_latent_and_its_tokens():
    adapter = unloaded(Wan, width=64, frames=9)
    own = adapter.canvas(None)
    assert (own.latent_shape, own.tokens) == ((16, 3, 4, 8), 3 * 2 * 4)
    assert adapter.image_shape == (9, 32, 64, 3)
    other = adapter.canvas(48, 5)  # the width goes with the height
    assert (other.latent_shape, other.tokens) == ((16, 2, 6, 12), 2 * 3 * 6)


def test_frames_that_the_vae_does_not_make_are_refused():
    adapter = unloaded(Wan, frames=8)
    with pytest.raises(
        ValueError, match=r"model.adapter.frames=8 .* one more than a multiple of 4"
    ):
        adapter.canvas(None)
    with pytest.raises(ValueError, match=r"evaluation.frames=6 does not fit"):
        adapter.canvas(None, 6)
    with pytest.raises(ValueError, match=r"evaluation.frames=5: this model makes pictures"):
        unloaded(Flux).canvas(None, 5)


def test_a_width_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"multiple of 16, and so must the width, 40"):
        unloaded(Wan, width=40, frames=5).canvas(None)


def test_two_transformers_of_which_one_would_be_trained_are_refused(tmp_path):
    adapter = unloaded(Wan)
    adapter.folder = tmp_path
    index = tmp_path / "model_index.json"
    index.write_text(json.dumps({"boundary_ratio": 0.875}))
    with pytest.raises(ValueError, match="has two transformers, one for each part of the noise"):
        adapter.fit(adapter.network)
    index.write_text(json.dumps({"boundary_ratio": None, "expand_timesteps": True}))
    assert adapter.fit(adapter.network) is adapter.network and adapter.times_of_tokens
