"""Stable Diffusion 3 from a folder, compared with its diffusers pipeline."""

import gc
from dataclasses import replace
from itertools import product

import pytest
import torch
from gate import each
from small_flow import (
    KERNELS,
    KEY,
    NOTHING,
    gap_to_sampler,
    gradients_of,
    make_prompts,
    sample_rows,
    small,
    step_on,
)
from tiny_sd3 import write_pipeline
from torch.testing import assert_close

from tandem import rng
from tandem.data.images import show
from tandem.dynamics.kernels import ode
from tandem.dynamics.schedules import diffusers_default
from tandem.policies.flow.families.sd3 import SD3
from tandem.policies.flow.policy import SAME
from tandem.policies.flow.sampling import start_noise
from tandem.policies.lora import Lora
from tandem.types import Prompt

LORA = Lora(r=4, alpha=8, target_modules="attention")
OF_DIFFUSERS = {"kernel": ode, "schedule": diffusers_default}
ALL = frozenset({"old_logp", "ref_logp", "transition", "kl_to_old", "kl_to_ref"})
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pipeline(tmp_path_factory.mktemp("sd3") / "source")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make(folder, cache):
    def make(needs=NOTHING, **options):
        options.setdefault("path", str(folder))
        adapter = SD3(resolution=16, max_sequence_length=16)
        return small(needs, adapter=adapter, cache_dir=str(cache), negative_prompt="", **options)

    return make


def with_diffusers(folder, rollout, scale, *, lora=None, output_type="latent"):
    """The same prompts and initial noise through a plain pipeline."""
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    if lora is not None:
        pipeline.load_lora_weights(lora)
    keys = rng.key(KEY, torch.arange(4), torch.zeros(4, dtype=torch.int64))
    return pipeline(
        prompt=[prompt.text for prompt in rollout.prompts],
        negative_prompt="",
        latents=start_noise(keys, (4, 8, 8)),
        num_inference_steps=5,
        guidance_scale=scale,
        max_sequence_length=16,
        height=16,
        width=16,
        output_type=output_type,
    ).images


@pytest.mark.parametrize(("kernel", "storage"), each(2, product(KERNELS, ["float32", "bfloat16"])))
def test_it_replays_what_it_sampled(make, kernel, storage):
    policy = make(sampling={"kernel": KERNELS[kernel], "storage": storage, "guidance_scale": 3.0})
    rollout = sample_rows(policy)
    for rows in (8, 64):
        policy.forward_pass.max_rows = rows
        assert gap_to_sampler(policy, rollout) < SAME


def test_guided_velocities_carry_a_gradient_of_both(make):
    policy = make(ALL, sampling={"guidance_scale": 3.0})
    rollout = policy.complete(sample_rows(policy, 2), ALL)
    step_on(policy, policy.evidence(rollout, NOTHING).logp.sum(), lr=1e-2)
    said = policy.evidence(rollout, ALL)
    assert (said.transition.kl_to_ref > 0).all()
    assert_close(said.transition.kl_to_old, said.transition.kl_to_ref, atol=0, rtol=1e-3)
    name, step = "context_embedder.weight", 1e-2
    gradient = gradients_of(policy, said.logp.sum())[name]
    parameter, place = policy.trainable()[name], int(gradient.abs().argmax())
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.view(-1)[place] += sign * step
            ends.append(policy.evidence(rollout, NOTHING).logp.double().sum())
            parameter.view(-1)[place] -= sign * step
    slope = (ends[0] - ends[1]) / (2 * step)
    assert_close(gradient.flatten()[place].double(), slope, atol=1e-4, rtol=2e-2)


def list_encoders():
    from transformers import CLIPTextModelWithProjection, T5EncoderModel

    gc.collect()
    return [x for x in gc.get_objects() if type(x) in (CLIPTextModelWithProjection, T5EncoderModel)]


def test_encoders_are_freed_and_asked_once(make, cache):
    before = list_encoders()  # of other tests
    sample_rows(make(), 1, texts=["an orange star"])
    assert len(list_encoders()) <= len(before)
    again = make()
    again.adapter.encode = None  # would fail
    assert len(sample_rows(again, 1, texts=["an orange star"]).outputs) == 1


def test_full_weights_are_a_pipeline_that_diffusers_loads(make, tmp_path):
    policy = make(sampling=OF_DIFFUSERS)
    example = Prompt(id=0, source="x", text="red", media=show(torch.zeros(16, 16, 3).byte()))
    rollout = policy.encode([example] * 8, key=0, slots=range(8))
    step_on(policy, -policy.evidence(rollout, NOTHING).logp.mean(), lr=0.1)
    painted = sample_rows(policy, 1)
    assert (
        painted.sample.x0 - sample_rows(make(sampling=OF_DIFFUSERS), 1).sample.x0
    ).abs().max() > 0.01
    policy.save(tmp_path / "model")
    latents = with_diffusers(tmp_path / "model", painted, 1.0)
    assert_close(latents, painted.sample.x0, atol=2e-5, rtol=1e-4)
    again = make(path=str(tmp_path / "model"), sampling=OF_DIFFUSERS)
    assert torch.equal(sample_rows(again, 1).sample.x0, painted.sample.x0)


def test_adapters_are_merged_and_beside_it_and_diffusers_loads_both(make, folder, tmp_path):
    policy = make(ALL, lora=LORA)
    for _ in range(3):
        rollout = sample_rows(policy)
        step_on(policy, policy.evidence(rollout, NOTHING).logp.sum(), lr=1.0)
    policy.save(tmp_path / "model")
    flat = replace(policy.sampling, **OF_DIFFUSERS)
    painted = sample_rows(policy, 1, sampling=flat)
    base = with_diffusers(folder, painted, 1.0)
    assert (painted.sample.x0 - base).abs().max() > 1e-3
    merged = with_diffusers(tmp_path / "model", painted, 1.0)
    assert_close(merged, painted.sample.x0, atol=5e-5, rtol=1e-4)
    beside = with_diffusers(folder, painted, 1.0, lora=tmp_path / "model" / "lora")
    assert_close(beside, painted.sample.x0, atol=5e-5, rtol=1e-4)
    with policy.model.reference() as field:
        assert field.network is policy.model.network
        assert_close(sample_rows(policy, 1, sampling=flat).sample.x0, base, atol=5e-5, rtol=1e-4)
    make(path=str(tmp_path / "model")).save(tmp_path / "next")
    assert not (tmp_path / "next" / "lora").exists()


def test_pictures_go_into_latents_and_back_through_the_vae(make):
    policy = make()
    pictures = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8)
    latents = policy.adapter.latents(pictures, policy.device)
    vae = policy.adapter.vae
    pixels = pictures.permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        want = (vae.encode(pixels).latent_dist.mean - 0.06) * 1.5
        back = vae.decode(want / 1.5 + 0.06).sample
    assert_close(latents, want, atol=1e-5, rtol=1e-5)
    want = ((back.clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 1)
    assert (policy.adapter.decode(latents) - want).abs().max() <= 1


def test_a_folder_without_a_t5_works(make, folder, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None)
    pipeline.save_pretrained(tmp_path)
    rollout = sample_rows(make(path=str(tmp_path)), 1)
    assert rollout.sample.x0.isfinite().all()


def test_a_path_that_holds_no_pipeline_is_one_line(make, folder, tmp_path):
    wrong = {
        None: "path is null",
        str(tmp_path): "has no model_index.json",
        "/no/such/folder": "this folder does not exist",
        "nobody/nothing": "could not be downloaded from the hub",
    }
    for path, complaint in wrong.items():
        with pytest.raises(ValueError, match=complaint) as caught:
            make(path=path)
        assert "\n" not in str(caught.value)


def test_a_resolution_that_the_model_cannot_have_is_refused(folder):
    for resolution, complaint in ((18, "multiple of 4"), (64, "at most 32")):
        policy_of = SD3(resolution=resolution)
        with pytest.raises(ValueError, match=complaint):
            policy_of.load(str(folder), None)


def test_prompts_are_admitted_with_their_negatives(make):
    policy = make(sampling={"guidance_scale": 2.0})
    kept, dropped = policy.admit(make_prompts(negative_prompt="blurry"))
    assert len(kept) == 4 and not dropped
    policy.adapter.encode = None  # everything is cached by now
    assert len(policy.sample(kept, 1, key=0, slots=range(4)).outputs) == 4
