"""Families of pipelines beside diffusers, and docs/families.md: `make families` writes it."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from policies.flow.small_flow import KEY, asked, small
from policies.flow.tiny_families import FAMILIES, VARIANTS
from torch import Tensor

from tandem import rng
from tandem.data.images import show
from tandem.dynamics.kernels import ode
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.sampling import start_noise

PAGE = Path(__file__).parents[1] / "docs" / "families.md"
INTRODUCTION = """# Families of flow models

Each `model=NAME` below is an adapter for folders in diffusers' layout. The measurements are from
small random checkpoints in the hub's own format. `make families` writes this page.

* **gap**: the largest difference between latents after three steps and those of the family's own
  diffusers pipeline, from the same noise at the same noise levels, without guidance and with it;
  images are not square. A dash: the family has no guidance.
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
  FLUX.1-schnell set `model.path=black-forest-labs/FLUX.1-schnell
  model.adapter.embedded_guidance=null`, and the flags named in the warning about its scheduler.
* On the hub, the image processors of FLUX.2-dev and Qwen-Image-Edit need torchvision. The latter
  is loaded without its video part; the former was tried with its tokenizer alone.
* Wan's folders name UniPC, which rounds times to whole thousandths: the gap is to the same
  pipeline with `FlowMatchEulerDiscreteScheduler`.
* Wan 2.2 A14B trains both of its transformers, each at the noise levels that the folder names for
  it, with one guidance scale where its pipeline may use two. Adapters of the second transformer
  are in `lora/transformer_2` (`load_into_transformer_2=True`).
* The pipeline of HunyuanVideo 1.5 cannot load adapters; its transformer can
  (`load_lora_adapter(folder, weight_name="pytorch_lora_weights.safetensors")`).
* LTX-2 is sampled and trained with its sound, with classifier-free guidance only and one scale
  for both; rewards see the video.
* Image-to-video families are evaluated at the size of training.
* No family was trained at its full size here.

## Diffusers pipelines without an adapter

Flow pipelines of the installed diffusers, by folder, and why there is no adapter. An adapter for
a similar family takes 50 to 100 lines: [how](howto/flow_family.md).

| pipelines | why |
|---|---|
"""
ALIKE = "similar; not built yet"
CONTROLLED = "needs a second network that reads an edge map or a mask; not built"
# Without their variants.
ADAPTED = "flux flux2 hunyuan_video1_5 ltx2 qwenimage sana stable_diffusion_3 wan z_image"
REMAINING = {
    "aura_flow bria bria_fibo bria_fibo2 chroma cogview4 ernie_image glm_image hidream_image "
    "hunyuan_image ideogram4 joyimage kandinsky5 kandinsky6 krea2 longcat_image lumina lumina2 "
    "nucleusmoe_image ovis_image prx qwenimage21 dreamlite": f"images, {ALIKE}",
    "omnigen visualcloze": "images within the text, tokens of both in one row; not built",
    "controlnet_sd3": CONTROLLED,
    "pag": "another guidance for families above; not built",
    "hunyuan_video ltx mochi cosmos easyanimate sana_video skyreels_v2 lucy "
    "chronoedit sana_wm": "video; `Films` is the base class, none was compared yet",
    "ace_step longcat_audio_dit stable_audio_3": "sound, for which there is no reward here",
}
LEFT = (
    "| `wan`: VACE, Animate | its inputs besides noise are not part of a prompt |",
    "| `hunyuan_video1_5`: image to video | its image passes through a SigLIP; not built |",
    "| `ltx2`: image to video, conditions, upsampling | start from earlier outputs; not built |",
    "| inpainting, image to image, control for the others | no mask or initial image in a prompt |",
    "",
)
STEPS = 3
TEXTS = ("red", 'a "green" square on grey')
EVERY = FAMILIES | VARIANTS


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The same prompts and noise by Tandem and by the family's own pipeline."""

    scale: float  # of guidance; 1: there is none
    latents: tuple[Tensor, Tensor]
    pixels: tuple[Tensor, Tensor]  # from 0 to 255


def compared(name: str, folder: Path) -> Iterator[Beside]:
    """With the folder's own noise levels, with and without guidance, on non-square images."""
    family = EVERY[name]
    torch.manual_seed(0)
    pipeline = family.pipeline()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder)
    adapter = family.make(resolution=family.high, width=family.wide)
    negative = "ugly" if family.negative else ""
    policy = small(path=str(folder), adapter=adapter, negative_prompt=negative)
    levels, _ = adapter.own_levels(STEPS, adapter.tokens[0])
    keys = rng.key(KEY, torch.arange(2), torch.zeros(2, dtype=torch.int64))
    starts = start_noise(keys, adapter.latent_shape)
    shown = torch.randint(0, 256, (2, family.shows, family.high, family.wide, 3), dtype=torch.uint8)
    prompts = [
        replace(prompt, images=tuple(map(show, pictures)))
        for prompt, pictures in zip(asked(TEXTS), shown, strict=True)
    ]
    own = {"steps": STEPS, "size": {"height": family.high, "width": family.wide}}
    own["images"] = [*shown]
    flat = FlowSampling(steps=STEPS, kernel=ode, schedule=lambda *_: levels)
    # The size of the image that the encoder of Qwen-Image-Edit gets.
    with patch.object(edit_plus, "CONDITION_IMAGE_SIZE", family.high * family.wide):
        for scale in (1.0, 3.0) if family.scale else (1.0,):
            sampling = replace(flat, guidance_scale=scale)
            rollout = policy.sample(prompts, 1, key=KEY, slots=range(2), sampling=sampling)
            with torch.no_grad():
                latents, pixels = family.painted(pipeline, TEXTS, starts, scale=scale, **own)
            yield Beside(
                scale=scale,
                latents=(rollout.sample.x0[:, :, family.held :], latents[:, :, family.held :]),
                pixels=(torch.stack(rollout.outputs), 255 * pixels.movedim(-3, -1)),
            )


def row(name: str, place: Path) -> str:
    """The table row of one family, with its measurements."""
    from launch.test_estimate_of_pictures import held_in_an_update

    gaps = [f"{gap(*one.latents):.0e}" for one in compared(name, place / f"{name}_beside")]
    activations, measured = held_in_an_update(name, place)
    own = FAMILIES[name].pipeline().__class__.__name__
    cells = [name, own, *gaps, *["-"] * (2 - len(gaps)), "✓", f"{activations.size / measured:.2f}"]
    return f"| {' | '.join(cells)} |"


def gap(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()


def flow_pipelines() -> set[str]:
    """Folders of diffusers' pipelines whose code names a flow-matching scheduler."""
    import diffusers.pipelines

    (home,) = diffusers.pipelines.__path__
    marks = ("FlowMatch", "flow_shift", "use_flow")
    return {
        file.parent.name
        for file in Path(home).glob("*/*.py")
        if any(mark in file.read_text(encoding="utf-8") for mark in marks)
    }


def page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, Path(folder)) for name in FAMILIES]
    left = [f"| `{'`, `'.join(names.split())}` | {why} |" for names, why in REMAINING.items()]
    return "\n".join([INTRODUCTION, *HEAD, *rows, NOTES.rstrip(), *left, *LEFT])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
