"""LTX-2 gives the size of a video by its number of tokens."""

from types import SimpleNamespace

import pytest

from tandem.policies.flow.families.ltx2 import LTX2


def of_sizes(**options):
    """The token counts of the family, with the numbers of the published checkpoint."""
    adapter = LTX2(**options)
    adapter.folder = "ltx"
    of_sound = {"audio_sampling_rate": 16000, "audio_hop_length": 160, "audio_scale_factor": 4}
    adapter.network = SimpleNamespace(config=SimpleNamespace(in_channels=128, **of_sound))
    adapter.vae = SimpleNamespace(spatial_compression_ratio=32, temporal_compression_ratio=8)
    return adapter


def test_a_film_that_is_told_from_none_of_another_size_is_refused_by_both_sizes():
    adapter = of_sizes(resolution=64, width=96, frames=9)
    assert adapter.canvas(None).tokens == 2 * 2 * 3
    said = (
        "^films of 64 x 96 in 9 frames and 96 x 64 in 9 frames both have 21 tokens, so their "
        "sizes cannot be told apart; change the height, width or number of frames of one"
    )
    with pytest.raises(ValueError, match=said):
        adapter.canvas((96, 64))
    assert adapter.canvas((96, 96)).tokens == 2 * 3 * 3
