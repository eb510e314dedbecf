"""Decoding of images by a VAE: batched, one by one, or in tiles."""

import pytest
import torch
from policies.flow.tiny_sd3 import vae

from tandem.policies.flow.families import autoencoders
from tandem.policies.flow.families.autoencoders import Autoencoded

SEAMS, WITHIN = 8.0, 6  # levels of 255, on average, and in the median


class Own(Autoencoded):
    image_shape, latent_shape = (64, 64, 3), (4, 32, 32)

    def __init__(self, decoding, offload=frozenset()):
        torch.manual_seed(0)
        self.vae = vae(4, (8, 16), shift=0.06, scale=1.5).eval()
        self.save_memory(offload, decoding)
        if decoding == "tiled":
            self.vae.enable_tiling()


@pytest.fixture
def latents():
    """Latents of images of 64 pixels, several tiles of 32. They repeat one pattern: norms of a VAE
    use the statistics of their input, on which random weights depend."""
    noise = torch.randn(10, 4, 4, 4, generator=torch.Generator().manual_seed(1))
    return noise.repeat(1, 1, 8, 8)


def test_pictures_one_by_one_are_those_of_a_batch(latents):
    batched, sliced = (Own(decoding).decode(latents) for decoding in ("batched", "sliced"))
    assert (batched.int() - sliced.int()).abs().max() <= 1
    back = [Own(decoding).latents(batched, latents.device) for decoding in ("batched", "sliced")]
    torch.testing.assert_close(*back, atol=1e-5, rtol=1e-5)


def test_a_tiled_picture_differs_at_its_seams_by_a_few_levels(latents):
    whole, tiled = (Own(decoding).decode(latents) for decoding in ("batched", "tiled"))
    apart = (whole.int() - tiled.int()).abs().float()
    assert 0 < apart.mean() < SEAMS and apart.median() <= WITHIN
    assert whole.shape == tiled.shape


def test_larger_pictures_than_in_training_are_decoded_fewer_at_once(latents, monkeypatch):
    monkeypatch.setattr(autoencoders, "PIXELS_AT_ONCE", 4 * 64 * 64)
    sizes, decode = [], Own.decode_raw
    monkeypatch.setattr(
        Own, "decode_raw", lambda self, x: (sizes.append(len(x)), decode(self, x))[1]
    )
    own = Own("batched")
    for larger in (latents, latents.repeat(1, 1, 2, 2)):
        own.decode(larger)
    assert sizes == [4, 4, 2] + 10 * [1]


def test_a_vae_that_returns_says_the_same(latents):
    stays, returns = Own("batched"), Own("batched", frozenset({"vae"}))
    assert torch.equal(stays.decode(latents), returns.decode(latents))
