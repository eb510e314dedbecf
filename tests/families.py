"""Families of pipelines compared with diffusers: `make families` writes docs/families.md."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import diffusers
import torch
from diffusers import DiffusionPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from policies.flow.small_flow import KEY, make_prompts, small
from policies.flow.tiny_families import FAMILIES, VARIANTS, TinyFamily
from torch import Tensor

from tandem import rng
from tandem.data.images import show
from tandem.dynamics.kernels import ode
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.sampling import start_noise
from tandem.types import Prompt

PAGE = Path(__file__).parents[1] / "docs" / "families.md"
INTRODUCTION = """# Supported image and video models

Each `model=NAME` below is an adapter for folders in diffusers' layout. The measurements are from
small random checkpoints in the hub's own format. `make families` writes this page.

* **gap**: the largest difference between latents after three steps and those of the family's own
  diffusers pipeline, from the same noise at the same noise levels, without guidance and with it.
  A wide and a high image share the batch. A dash: the family has no guidance.
* **trains**: two iterations of `flow_grpo` and of `nft` with the preset. Plain diffusers loads
  the resulting adapters into the base, with latents equal to those of the merged weights to 1e-5.
  The slow tests of `tests/test_picture_presets.py` do both for every row.
* **estimate**: activations of an update according to `estimate=true`, divided by the measured peak.
"""
HEAD = (
    "| `model=` | pipeline | gap | gap, guided | trains `flow_grpo`, `nft` | estimate |",
    "|---|---|---|---|---|---|",
)
NOTES = """
* `qwen_image_2512`, `sd3_5_large`, `z_image_turbo` and `wan2_1_14b` are other weights of the same
  classes.
* Distilled models (`z_image_turbo`, `flux2_klein`) use few steps and no guidance. For
  FLUX.1-schnell set `model=flux1_dev model.path=black-forest-labs/FLUX.1-schnell
  model.adapter.embedded_guidance=null model.adapter.max_sequence_length=256 rollout.steps=4
  evaluation.steps=4 dynamics/schedule=linear_shift dynamics.schedule.shift=1`.
* On the hub, the image processors of FLUX.2-dev and Qwen-Image-Edit need torchvision. The latter
  is loaded without its video part; the former was tried with its tokenizer alone.
* Input images are cropped and resized to the size of the generated image, and compared at that
  size. On their own, the pipelines of FLUX.1-Kontext and Qwen-Image-Edit resize them to about a
  megapixel in their own shape.
* Wan's folders name UniPC, which rounds times to whole thousandths: the gap is to the same
  pipeline with `FlowMatchEulerDiscreteScheduler`.
* Wan 2.2 A14B trains both of its transformers, each at the noise levels that the folder names for
  it. `model.adapter.guidance_scale_2` is the guidance scale of the second one, as in its pipeline:
  it applies wherever the first is guided. Adapters of the second transformer are in
  `lora/transformer_2` (`load_into_transformer_2=True`).
* The pipeline of HunyuanVideo 1.5 cannot load adapters; its transformer can
  (`load_lora_adapter(folder, weight_name="pytorch_lora_weights.safetensors")`).
* LTX-2 is sampled and trained with its sound, with classifier-free guidance only and one scale
  for both; rewards see the video.
* Wan's image-to-video models are evaluated at any size, but only TI2V-5B with other numbers of
  frames than in training.
* No family was trained at its full size here.

## Diffusers pipelines without an adapter

Flow pipelines of the installed diffusers, and what an adapter needs that does not exist here: by
folder, and those of the families above by class, without its ending `Pipeline`. An adapter for a
family like those above takes 60 to 100 lines: [how](howto/flow_family.md).

| pipelines | what is missing |
|---|---|
"""
# Without their variants.
ADAPTED = (
    "flux flux2 hunyuan_video hunyuan_video1_5 ltx ltx2 qwenimage sana skyreels_v2 "
    "stable_diffusion_3 wan z_image"
)
REMAINING = {
    "aura_flow krea2 prx qwenimage21": "only the adapter: they encode, guide and step as families "
    "above do",
    "bria ovis_image": "only the adapter; their pipelines load no LoRA",
    "joyimage": "only the adapter; it edits, and its pipeline loads no LoRA",
    "chronoedit sana_video": "only the adapter, on `Films`",
    "easyanimate motif_video": "only the adapter, on `Films`; their pipelines load no LoRA",
    "anyflow": "a flow map: its transformer takes two noise levels, before and after the step",
    "helios": "a video in chunks, each from those before it, by its own scheduler",
    "bria_fibo bria_fibo2": "a condition of the states of many layers of a text encoder, about "
    "100 MB per thousand tokens in the embedding cache",
    "chroma": "with activation checkpointing, diffusers leaves the text mask out of the "
    "single-stream blocks, so training would read other states than sampling",
    "hidream_image": "in eval mode, diffusers computes its experts without gradients, and train "
    "mode is another computation",
    "nucleusmoe_image": "experts chosen by values, which an estimate of memory does not have, and "
    "a pipeline that loads no LoRA",
    "lumina2": "a transformer that splits a batch by the lengths of its texts, values that an "
    "estimate of memory does not have",
    "lumina": "guidance of three of its channels, and positions that depend on the noise level",
    "cogview4 kandinsky5": "texts as long as the longest of a batch, without a mask: a row would "
    "depend on its neighbours",
    "hunyuan_image": "guidance with a momentum over the steps, where a step here is a function of "
    "its state",
    "ideogram4": "guidance by a second, unconditional transformer, with a scale per step",
    "ernie_image glm_image longcat_image": "a language model that first writes tokens or another "
    "prompt: a [chain](chains.md), which takes other language models",
    "kandinsky6": "video with sound, sampled by two schedulers, then enlarged by a second model",
    "dreamlite": "a U-Net that paints beside the input image, in one canvas of twice the width",
    "omnigen visualcloze": "images within the text, tokens of both in one row",
    "controlnet_sd3": "a second network that reads an edge map or a mask",
    "pag": "another guidance for families above",
    "mochi": "a scheduler with linear and then quadratic levels, counted from data to noise",
    "cosmos": "preconditioned outputs instead of velocities, and the package `cosmos_guardrail`, "
    "without which its pipelines do not start",
    "lucy sana_wm": "an input video or a camera path, for which rows have no column",
    "ace_step longcat_audio_dit stable_audio_3": "sound, for which there is no reward here",
}
# Pipelines of those folders by class, without the ending.
LEFT = {
    "QwenImageEdit": "only the adapter: the first Qwen-Image-Edit, with one image of a megapixel",
    "QwenImageLayered": "several pictures with transparency for one prompt",
    "Flux2KleinKV": "keys and values of the input images that the first step leaves to the others",
    "ZImageOmni": "a SigLIP and tokens of images within the text",
    "SanaSprint*": "consistency steps: a scheduler that draws noise anew",
    "WanVACE WanAnimate WanVideoToVideo": "inputs besides noise that are not part of a prompt",
    "HunyuanVideoImageToVideo HunyuanSkyreelsImageToVideo HunyuanVideo15ImageToVideo": "the image "
    "as tokens of a language model, a SigLIP or a first latent frame with its own noise level",
    "HunyuanVideoFramepack": "sections of a video, each from those before it",
    "LTXCondition": "images and videos as frames with their own noise levels, and levels that are "
    "linear, then quadratic: LTX-Video from 0.9.5 on",
    "LTXI2VLongMultiPrompt LTX*LatentUpsample LTX2Condition LTX2ImageToVideo LTX2DFR* LTX2HDR "
    "LTX2InContext LTX2VideoDiffusionDecode": "a start from earlier outputs, or from a video",
    "SkyReelsV2ImageToVideo": "only the adapter",
    "SkyReelsV2DiffusionForcing*": "a noise level per frame",
    "*Control* *Inpaint *Img2Img FluxFill FluxPriorRedux": "a mask, an edge map or a first image "
    "in a prompt",
}
# Folders of modular pipelines alone.
MODULAR = {
    "anima echo flux3 minimax_h3 minimax_music3 wan_animate_2": "modular pipelines alone: a folder "
    "with another index, and no class of a pipeline to compare with",
}
STEPS = 3
TEXTS = ("red", 'a "green" square on grey')
EVERY = FAMILIES | VARIANTS


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The same prompts and noise by Tandem and by the family's own pipeline."""

    scale: float  # of guidance; 1: there is none
    latents: tuple[Tensor, Tensor]
    pixels: tuple[Tensor, Tensor]  # from 0 to 255


def compare(name: str, folder: Path) -> Iterator[Beside]:
    """With the folder's own noise levels, with and without guidance; Tandem paints wide and high
    images in one batch."""
    family = EVERY[name]
    torch.manual_seed(0)
    pipeline = family.pipeline()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder)
    adapter = family.make(resolution=family.high, width=family.wide)
    negative = "ugly" if family.negative else ""
    policy = small(path=str(folder), adapter=adapter, negative_prompt=negative)
    levels, _ = adapter.own_levels(STEPS, adapter.tokens[0])
    flat = FlowSampling(steps=STEPS, kernel=ode, schedule=lambda *_: levels)
    prompts = in_two_sizes(family)
    # The size of the image that the encoder of Qwen-Image-Edit gets.
    with patch.object(edit_plus, "CONDITION_IMAGE_SIZE", family.high * family.wide):
        for scale in (1.0, 3.0) if family.scale else (1.0,):
            sampling = replace(flat, guidance_scale=scale)
            rollout = policy.sample(prompts, 1, key=KEY, slots=range(3), sampling=sampling)
            for slot, prompt in enumerate(prompts):
                shape = adapter.canvas(prompt.size).latent_shape
                ours = rollout.sample.x0[slot][tuple(map(slice, shape))]
                start = start_noise(rng.key(KEY, torch.tensor([slot]), 0), shape)
                theirs, pixels = by_its_pipeline(family, pipeline, prompt, start, scale)
                yield Beside(
                    scale=scale,
                    latents=(ours[:, family.held :], theirs[:, family.held :]),
                    pixels=(rollout.outputs[slot], pixels),
                )


@torch.no_grad()
def by_its_pipeline(
    family: TinyFamily, pipeline: DiffusionPipeline, prompt: Prompt, start: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The latents after the last step, and the pixels from 0 to 255; start: [1, ...]."""
    high, wide = prompt.size or (family.high, family.wide)
    own = {"scale": scale, "steps": STEPS, "size": {"height": high, "width": wide}}
    own["images"] = [[picture.load() for picture in prompt.images]]
    (latents,), (pixels,) = family.painted(pipeline, [prompt.text], start, **own)
    return latents, 255 * pixels.movedim(-3, -1)


def in_two_sizes(family: TinyFamily) -> list[Prompt]:
    """Prompts for pictures of the policy's own size, and for one on its side."""
    own, on_its_side = (family.high, family.wide), (family.wide, family.high)
    prompts = []
    for prompt, size in zip(
        make_prompts((*TEXTS, TEXTS[1])), (None, None, on_its_side), strict=True
    ):
        shown = torch.randint(0, 256, (family.shows, *(size or own), 3), dtype=torch.uint8)
        prompts.append(replace(prompt, size=size, images=tuple(map(show, shown))))
    return prompts


def row(name: str, place: Path) -> str:
    """The table row of one family, with its measurements."""
    from launch.test_estimate_of_pictures import bytes_in_an_update

    gaps: dict[float, float] = {}
    for one in compare(name, place / f"{name}_beside"):
        gaps[one.scale] = max(gap(*one.latents), gaps.get(one.scale, 0.0))
    activations, measured = bytes_in_an_update(name, place)
    own = FAMILIES[name].pipeline().__class__.__name__
    cells = [name, own, *(f"{x:.0e}" for x in gaps.values()), *["-"] * (2 - len(gaps))]
    cells += ["✓", f"{activations.size / measured:.2f}"]
    return f"| {' | '.join(cells)} |"


def gap(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()


def flow_pipelines() -> dict[str, set[str]]:
    """The classes of diffusers' pipelines by folder, where an adapter or a scheduler of
    flows is."""
    marks = (
        "FlowMatch", "flow_shift", "use_flow", "flow_prediction", "FlowMap", "HeliosScheduler",
        "calculate_shift",
    )  # fmt: skip
    found: dict[str, set[str]] = {folder: set() for folder in ADAPTED.split()}
    for file in folder_of("pipelines").glob("*/*.py"):
        if any(mark in file.read_text(encoding="utf-8") for mark in marks):
            found.setdefault(file.parent.name, set())
    for folder, classes in found.items():
        for file in folder_of("pipelines").glob(f"{folder}/pipeline_*.py"):
            classes |= {*re.findall(r"^class (\w+)Pipeline\(", file.read_text("utf-8"), re.M)}
    return found


def modular_folders() -> set[str]:
    """Folders of modular pipelines without pipelines of the same name."""
    folders = {x.parent.name for x in folder_of("modular_pipelines").glob("*/__init__.py")}
    return folders - {x.name for x in folder_of("pipelines").iterdir()}


def folder_of(package: str) -> Path:
    return Path(diffusers.__file__).parent / package


def missing() -> list[str]:
    """The table rows of what has no adapter."""
    told = REMAINING | LEFT | MODULAR
    return [f"| `{'`, `'.join(names.split())}` | {why} |" for names, why in told.items()]


def page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, Path(folder)) for name in FAMILIES]
    return "\n".join([INTRODUCTION, *HEAD, *rows, NOTES.rstrip(), *missing(), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
