"""FLUX.1 and Qwen-Image from folders, compared with their diffusers pipelines."""

import gc
import shutil
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_flow import KERNELS, KEY, NOTHING, gap_to_sampler, sample_rows, small, step_on
from tiny_flux import write_flux
from tiny_qwen_image import write_qwen_image
from tiny_sd3 import write_pipeline
from torch.testing import assert_close

from tandem import rng
from tandem.config import build, compose
from tandem.dynamics.kernels import ode
from tandem.policies.flow.families.flux import Flux
from tandem.policies.flow.families.patches import pack, unpack
from tandem.policies.flow.families.qwen_image import QwenImage
from tandem.policies.flow.policy import SAME
from tandem.policies.flow.records import PromptInput
from tandem.policies.flow.sampling import start_noise
from tandem.policies.lora import Lora

LORA = Lora(r=4, alpha=8, target_modules="attention")
TEXTS = ("red", "a green square", "blue triangle on grey", "x")
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


def adapter_of(name, resolution=32):
    if name == "flux1_dev":
        return Flux(resolution=resolution, max_sequence_length=16, embedded_guidance=2.0)
    return QwenImage(resolution=resolution, max_sequence_length=40)


@dataclass
class World:
    """A folder of each family, and a cache for encoded prompts."""

    folders: dict
    cache: str

    def make(self, name, needs=NOTHING, **options):
        options.setdefault("path", str(self.folders[name]))
        options.setdefault("adapter", adapter_of(name))
        return small(needs, cache_dir=self.cache, negative_prompt="ugly", **options)

    def schedule(self, name):
        return build(compose([f"model={name}", "data.path=x"]).dynamics.schedule)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("pipelines")
    folders = {"flux1_dev": write_flux(place / "flux"), "qwen_image": write_qwen_image(place / "q")}
    return World(folders=folders, cache=str(place / "cache"))


FAMILIES = pytest.mark.parametrize("name", ["flux1_dev", "qwen_image"])


def pipeline_of(name, folder):
    from diffusers import FluxPipeline, QwenImagePipeline

    kind = {"flux1_dev": FluxPipeline, "qwen_image": QwenImagePipeline}[name]
    pipeline = kind.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def with_diffusers(name, folder, *, scale=1.0, lora=None, side=32, output_type="latent"):
    """The same prompts and initial noise through a plain pipeline, one by one."""
    pipeline = pipeline_of(name, folder)
    if lora is not None:
        pipeline.load_lora_weights(lora)
    keys = rng.key(KEY, torch.arange(4), torch.zeros(4, dtype=torch.int64))
    starts = pack(start_noise(keys, (16, side // 8, side // 8)))
    own = {"flux1_dev": {"guidance_scale": 2.0, "max_sequence_length": 16}, "qwen_image": {}}[name]
    images = [
        pipeline(
            prompt=text,
            negative_prompt="ugly" if scale > 1 else None,
            true_cfg_scale=scale,
            latents=start[None],
            num_inference_steps=5,
            height=side,
            width=side,
            output_type=output_type,
            **own,
        ).images[0]
        for text, start in zip(TEXTS, starts, strict=True)
    ]
    if output_type != "latent":
        return torch.stack([torch.tensor(image) for image in images])
    return unpack(torch.stack(images), side // 8, side // 8)


def flat(world, name, **options):
    return {"kernel": ode, "schedule": world.schedule(name), **options}


@FAMILIES
def test_pictures_of_another_size_have_their_own_schedule(world, name):
    policy = world.make(name, sampling=flat(world, name, resolution=48))
    rollout = sample_rows(policy, 1, texts=TEXTS)
    latents = with_diffusers(name, world.folders[name], side=48)
    assert_close(rollout.sample.x0, latents, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "kernel"), [("flux1_dev", "flow_sde"), ("qwen_image", "cps")])
def test_a_ratio_before_the_first_update_is_one(world, name, kernel):
    sampling = {"kernel": KERNELS[kernel], "storage": "bfloat16", "guidance_scale": 3.0}
    policy = world.make(name, sampling=sampling | {"schedule": world.schedule(name)})
    rollout = sample_rows(policy, 3, texts=TEXTS)
    for rows in (8, 64):
        policy.forward_pass.max_rows = rows
        assert gap_to_sampler(policy, rollout) < SAME


@FAMILIES
def test_pictures_go_into_latents_and_back_as_its_vae_says(world, name):
    policy = world.make(name)
    pictures = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    latents = policy.adapter.latents(pictures, policy.device)
    vae, pixels = policy.adapter.vae, pictures.permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        if name == "flux1_dev":
            want = (vae.encode(pixels).latent_dist.mean - 0.1159) * 0.3611
        else:
            mean, std = torch.tensor([vae.config.latents_mean, vae.config.latents_std])
            raw = vae.encode(pixels[:, :, None]).latent_dist.mean[:, :, 0]
            want = (raw - mean.view(16, 1, 1)) / std.view(16, 1, 1)
    assert_close(latents, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("flux1_dev", "attention"),
        ("flux1_dev", ["attn.to_q", "proj_mlp"]),
        ("qwen_image", "all-linear"),
    ],
)
def test_adapters_are_merged_and_beside_it_and_diffusers_loads_both(world, name, places, tmp_path):
    lora = Lora(r=4, alpha=8, target_modules=places)
    policy = world.make(name, lora=lora)
    for _ in range(2):
        rollout = sample_rows(policy, texts=TEXTS)
        step_on(policy, policy.evidence(rollout, NOTHING).logp.sum(), lr=3.0)
    policy.save(tmp_path / "model")
    merged = world.make(name, path=str(tmp_path / "model"), sampling=flat(world, name))
    painted = sample_rows(merged, 1, texts=TEXTS).sample.x0
    folder = world.folders[name]
    assert (painted - with_diffusers(name, folder)).abs().max() > 1e-3
    assert_close(with_diffusers(name, tmp_path / "model"), painted, atol=1e-5, rtol=1e-5)
    beside = with_diffusers(name, folder, lora=tmp_path / "model" / "lora")
    assert_close(beside, painted, atol=1e-5, rtol=1e-5)


@FAMILIES
def test_recomputed_activations_leave_the_gradients_of_adapters(world, name):
    gradients = []
    for recompute in (False, True):
        tile = 3 if recompute else None
        policy = world.make(name, lora=LORA, gradient_checkpointing=recompute, mlp_tile=tile)
        for parameter in policy.trainable().values():  # half of a new adapter is 0
            torch.nn.init.constant_(parameter, 0.02)
        rollout = sample_rows(policy, 2, texts=TEXTS)
        gradients.append(step_on(policy, policy.evidence(rollout, NOTHING).logp.sum()))
        assert policy.model.network.is_gradient_checkpointing == recompute
    moving = [layer for layer, gradient in gradients[0].items() if gradient.abs().max() > 1e-6]
    assert len(moving) > 0.8 * len(gradients[0])
    for layer, gradient in gradients[0].items():
        assert_close(gradients[1][layer], gradient, atol=1e-6, rtol=1e-4)


@FAMILIES
def test_adapters_are_float32_over_a_base_in_bfloat16(world, name):
    policy = world.make(name, lora=LORA, dtype="bfloat16", sampling={"guidance_scale": 2.0})
    network = policy.model.network
    assert {p.dtype for p in policy.trainable().values()} == {torch.float32}
    assert {p.dtype for p in network.parameters() if not p.requires_grad} == {torch.bfloat16}
    rollout = sample_rows(policy, texts=TEXTS)
    before = policy.evidence(rollout, NOTHING).logp
    assert_close(before.detach(), rollout.behaviour_logp, atol=2**-9, rtol=0)  # of bfloat16
    step_on(policy, -before.sum(), lr=1e-2)
    assert (policy.evidence(rollout, NOTHING).logp - before).abs().max() > 0


@FAMILIES
def test_encoders_are_freed_and_a_text_is_encoded_once(world, name):
    from transformers import CLIPTextModel, Qwen2_5_VLForConditionalGeneration, T5EncoderModel

    sample_rows(world.make(name), 1, texts=["an orange star"])
    gc.collect()
    kinds = (CLIPTextModel, T5EncoderModel, Qwen2_5_VLForConditionalGeneration)
    assert not [x for x in gc.get_objects() if type(x) in kinds]
    again = world.make(name)
    again.adapter.encode = None  # would fail
    assert len(sample_rows(again, 1, texts=["an orange star"]).outputs) == 1


def test_patches_are_cut_and_put_together_as_diffusers_does():
    from diffusers import FluxPipeline

    pictures = torch.randn(2, 16, 6, 4)
    assert torch.equal(pack(pictures), FluxPipeline._pack_latents(pictures, 2, 16, 6, 4))
    assert torch.equal(unpack(pack(pictures), 6, 4), pictures)


def test_a_transformer_without_embedded_guidance_is_told_apart(world, tmp_path):
    folder = write_flux(tmp_path / "schnell", guidance_embeds=False)
    with pytest.raises(
        ValueError, match=r"embedded_guidance=3.5: .* takes no guidance scale; set it to nu"
    ):
        Flux(resolution=32).load(str(folder), None)
    with pytest.raises(
        ValueError, match=r"embedded_guidance=null: .* needs a guidance scale; set it to 3.5"
    ):
        Flux(resolution=32, embedded_guidance=None).load(str(world.folders["flux1_dev"]), None)
    plain = Flux(resolution=32, max_sequence_length=16, embedded_guidance=None)
    assert sample_rows(world.make("flux1_dev", path=str(folder), adapter=plain), 1).outputs
    assert plain.tokens == (4, 16)


def test_a_folder_that_is_not_whole_or_of_another_family_is_one_line(world, tmp_path):
    sd3 = write_pipeline(tmp_path / "sd3")
    lacking = shutil.copytree(world.folders["flux1_dev"], tmp_path / "lacking")
    weights = lacking / "transformer" / "diffusion_pytorch_model.safetensors"
    save_file({n: x for n, x in load_file(weights).items() if n != "x_embedder.bias"}, weights)
    silent = shutil.copytree(world.folders["qwen_image"], tmp_path / "silent")
    shutil.rmtree(silent / "text_encoder")
    mixed = shutil.copytree(world.folders["flux1_dev"], tmp_path / "mixed")
    shutil.copytree(sd3 / "transformer", mixed / "transformer", dirs_exist_ok=True)
    broken = shutil.copytree(world.folders["qwen_image"], tmp_path / "broken")
    (broken / "vae" / "config.json").write_text("{")
    complaints = {
        (Flux, sd3): "is a StableDiffusion3Pipeline, .* a FluxPipeline; set model=sd3_5_medium",
        (Flux, mixed): "its transformer is a SD3Transformer2DModel, but the chosen model needs",
        (Flux, lacking): r"its transformer lacks \['x_embedder.bias'\]",
        (QwenImage, silent): "has no folder text_encoder",
        (QwenImage, broken): "its vae cannot be loaded",
        (Flux, world.folders["qwen_image"]): "is a QwenImagePipeline, .*; set model=qwen_image",
    }
    for (kind, folder), complaint in complaints.items():
        with pytest.raises(ValueError, match=complaint) as caught:
            kind(resolution=32).load(str(folder), None)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder"])
def test_a_part_in_a_pickle_is_refused_when_the_pipeline_is_loaded(world, tmp_path, part):
    folder = shutil.copytree(world.folders["qwen_image"], tmp_path / "pickled")
    for weights in (folder / part).glob("*.safetensors"):
        torch.save(load_file(weights), weights.with_suffix(".bin"))
        weights.unlink()
    with pytest.raises(ValueError, match=rf'in \w+\.bin, a pickle.*, subfolder="{part}", use_saf'):
        QwenImage(resolution=32).load(str(folder), None)


def test_a_text_that_is_cut_off_is_read_as_diffusers_cuts_it(world):
    adapter = QwenImage(resolution=32, max_sequence_length=8)
    policy = world.make("qwen_image", adapter=adapter)
    (said,) = adapter.encode([PromptInput(text="a long text about many things")], policy.device)
    assert said["mask"].all() and said["states"].shape == (8, 32)
    pipeline = pipeline_of("qwen_image", world.folders["qwen_image"])
    want, _ = pipeline.encode_prompt("a long text about many things", max_sequence_length=8)
    assert_close(said["states"], want[0], atol=1e-6, rtol=1e-5)


def test_a_resolution_that_does_not_fit_is_refused(world):
    for resolution in (24, 8):
        with pytest.raises(ValueError, match=r"model.adapter.resolution=\d+ .* multiple of 16$"):
            Flux(resolution=resolution).load(str(world.folders["flux1_dev"]), None)
