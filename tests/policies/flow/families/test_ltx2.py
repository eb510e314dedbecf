"""LTX-2: its sound behind the channels of the video, and films of several sizes in one batch."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from policies.flow.tiny_families import FAMILIES
from small_flow import KEY, make_prompts, small
from torch.testing import assert_close

from tandem.config import compose
from tandem.dynamics.kernels import ode
from tandem.policies.flow.families.ltx2 import LTX2
from tandem.types import take

SIZES = ((64, 96), (96, 64), (32, 32))  # the last has more channels for its sound
LTX = FAMILIES["ltx_2"]
GROUP = 2
CLOSE = {"atol": 2e-6, "rtol": 0}
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    folder = str(LTX.write(tmp_path_factory.mktemp("ltx") / "source"))

    def make(size=SIZES[0], **options):
        adapter = LTX.make(resolution=size[0], width=size[1])
        return small(path=folder, adapter=adapter, steps=3, **options)

    return make


def of_sizes():
    """Prompts for films of each size; the first is the policy's own."""
    sizes = (None, *SIZES[1:])
    return [replace(p, size=size) for p, size in zip(make_prompts(), sizes, strict=False)]


def alone(make, prompt, slot, **options):
    """A policy of films of that size, and its rows."""
    policy = make(prompt.size or SIZES[0], **options)
    return policy, policy.sample([replace(prompt, size=None)], GROUP, key=KEY, slots=[slot])


def rows_of(slot):
    return torch.arange(GROUP) + GROUP * slot


def make_family(channels=128, **options):
    """The family as far as it knows the numbers of the published checkpoint."""
    adapter = LTX2(**options)
    of_sound = {"audio_sampling_rate": 16000, "audio_hop_length": 160, "audio_scale_factor": 4}
    config = SimpleNamespace(in_channels=128, audio_in_channels=channels, **of_sound)
    adapter.network = SimpleNamespace(config=config)
    adapter.vae = SimpleNamespace(spatial_compression_ratio=32, temporal_compression_ratio=8)
    return adapter


def test_the_sound_fills_as_many_channels_as_its_tokens_need():
    """9 frames make 2 latent frames, and 3/8 s make 9 tokens of sound; one frame makes one."""
    adapter = make_family(channels=64, resolution=64, width=96, frames=9)
    assert adapter.sound(2) == (9, 64)
    assert adapter.canvas(None).latent_shape == (128 + 9 * 64 // 12, 2, 2, 3)
    assert adapter.canvas((96, 64)).latent_shape == (128 + 9 * 64 // 12, 2, 3, 2)
    assert adapter.canvas((32, 32)).latent_shape == (128 + 9 * 64 // 2, 2, 1, 1)
    assert adapter.canvas((64, 64), 1).latent_shape == (128 + 64 // 4, 1, 2, 2)
    assert {adapter.canvas(size).tokens for size in ((64, 96), (96, 64))} == {2 * 2 * 3}


@pytest.mark.parametrize("size", [(512, 768, 121), (192, 128, 9), (480, 832, 81), (32, 32, 1)])
def test_the_preset_knows_the_size_of_a_latent(size):
    options = dict(zip(("resolution", "width", "frames"), size, strict=True))
    words = [f"model.adapter.{name}={x}" for name, x in options.items()]
    own = compose(["model=ltx_2", "data.path=x", *words]).model.latent_size
    assert own == torch.Size(make_family(**options).canvas(None).latent_shape).numel()


def test_a_row_of_several_sizes_is_sampled_and_trained_as_alone(make):
    policy = make()
    rollout = policy.sample(of_sizes(), GROUP, key=KEY, slots=range(3))
    full = policy.complete(rollout, frozenset({"old_logp"}))
    logp = policy.evidence(full, frozenset()).logp
    for slot, prompt in enumerate(of_sizes()):
        other, rows = alone(make, prompt, slot)
        own = take(rollout, rows_of(slot))
        shape = other.adapter.latent_shape
        assert_close(policy.crop_to_size(own).sample.x0, rows.sample.x0, **CLOSE)
        assert rows.sample.x0.shape[1:] == shape == policy.adapter.canvas(prompt.size).latent_shape
        assert all(map(torch.equal, own.outputs, rows.outputs))
        assert_close(logp[rows_of(slot)], other.evidence(rows, frozenset()).logp, **CLOSE)
        assert_close(full.old_logp[rows_of(slot)], rows.behaviour_logp, **CLOSE)


def test_the_same_tokens_move_elsewhere_in_a_film_on_its_side(make):
    policy = make()
    prompts = make_prompts()[:1]
    x = torch.randn(1, *policy.adapter.latent_shape)
    sigma, condition = torch.ones(1), policy.library.rows(prompts, policy.device, guided=False)
    on_its_side = x.reshape(1, *policy.adapter.canvas((96, 64)).latent_shape)
    one, other = (policy.model.field(y, sigma, condition, scale=1.0) for y in (x, on_its_side))
    assert (one.flatten() - other.flatten()).abs().max() > 1e-3


def test_what_is_behind_the_sound_ends_at_0_and_has_no_error(make):
    """5 tokens of 32 numbers in a channel of 3 x 8 x 8."""
    policy = make((64, 64), objective="denoising", sampling={"kernel": ode})
    rollout = policy.sample(make_prompts(), 1, key=KEY, slots=range(4))
    used = 16 * 3 * 8 * 8 + 5 * 32
    x0 = rollout.sample.x0.flatten(1)
    assert x0.shape[1] == 17 * 3 * 8 * 8
    assert_close(x0[:, used:], torch.zeros_like(x0[:, used:]), atol=1e-6, rtol=0)
    error = policy.errors(rollout, frozenset())["error"]
    assert_close(error[..., used:], torch.zeros_like(error[..., used:]), atol=1e-5, rtol=0)
    assert (error[..., :used].abs().amax((1, 2)) > 0.1).all()
