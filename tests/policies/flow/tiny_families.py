"""Every family of pipelines on random weights, and the call of its own pipeline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from PIL import Image
from policies.flow import (
    tiny_flux,
    tiny_flux2,
    tiny_hunyuan_video,
    tiny_hunyuan_video_1,
    tiny_ltx,
    tiny_ltx2,
    tiny_qwen_image,
    tiny_sana,
    tiny_sd3,
    tiny_wan,
    tiny_z_image,
)

from tandem.policies.flow.families.flux import Flux, FluxKontext
from tandem.policies.flow.families.flux2 import Flux2, Flux2Klein
from tandem.policies.flow.families.hunyuan_video_1 import HunyuanVideo1
from tandem.policies.flow.families.ltx import LTX
from tandem.policies.flow.families.ltx2 import LTX2
from tandem.policies.flow.families.patches import pack, unpack
from tandem.policies.flow.families.pipelines import Pipeline
from tandem.policies.flow.families.qwen_image import QwenImage
from tandem.policies.flow.families.qwen_image_edit import QwenImageEdit
from tandem.policies.flow.families.sana import Sana
from tandem.policies.flow.families.sd3 import SD3
from tandem.policies.flow.families.wan import SkyReelsV2, Wan
from tandem.policies.flow.families.wan_image import WanImage
from tandem.policies.flow.families.z_image import ZImage

SIDE = 32  # pixels
GUIDER = "guider"  # a component of the pipeline that applies guidance


@dataclass(frozen=True, kw_only=True)
class TinyFamily:
    """`scale`: the keyword of guidance; `offset`: how much its values are below Tandem's."""

    pipeline: Callable
    adapter: type[Pipeline]
    tokens: int = 16  # of a text
    options: Mapping = field(default_factory=dict)
    scale: str | None = "guidance_scale"  # None: no guidance
    offset: float = 0.0
    call: Mapping = field(default_factory=dict)
    packs: bool = False
    negative: bool = True  # whether it takes a negative prompt; else it is empty
    latent: tuple[int, ...] = (16, SIDE // 8, SIDE // 8)
    shows: int = 0  # images per prompt
    ask: Callable | None = None  # for pipelines with another call
    held: int = 0  # latent frames that the pipeline replaces after the last step
    second: bool = False  # whether there is a second transformer, with adapters of its own
    loads: bool = True  # whether the pipeline reads adapters; else its transformer does
    high: int = SIDE
    wide: int = SIDE + 16  # pixels, for a non-square image
    words: tuple[str, ...] = ()  # of the command line, beside the preset

    def write(self, folder):
        """Write a folder by `save_pretrained`."""
        torch.manual_seed(0)
        self.pipeline().save_pretrained(folder)
        return folder

    def parts(self, folder):
        """Parts that need a custom reader here, because torchvision is not installed."""
        adapter = self.make()
        adapter.folder = folder
        return adapter.own_readers()

    def make(self, **options):
        options = {"resolution": SIDE, "max_sequence_length": self.tokens} | options
        return self.adapter(**self.options, **options)

    def painted(self, pipeline, texts, starts, *, scale, steps, size, images=()):
        """The final latents of its own pipeline, and the decoded images from 0 to 1."""
        own = dict(self.call)
        if self.scale == GUIDER:
            pipeline.guider.guidance_scale = scale
        elif self.scale is not None:
            own[self.scale] = scale - self.offset
        if scale > 1 and self.negative:
            own["negative_prompt"] = "ugly"
        own |= {"num_inference_steps": steps, "output_type": "pt", **size}
        given = zip(texts, starts, map(as_given, images or [()] * len(texts)), strict=True)
        # Qwen-Image-Edit scales every image to a megapixel.
        with patch.object(edit_plus, "VAE_IMAGE_SIZE", size["height"] * size["width"]):
            rows = [
                self._one(pipeline, prompt=text, start=start, **own, **seen)
                for text, start, seen in given
            ]
        return tuple(map(torch.cat, zip(*rows, strict=True)))

    def _one(self, pipeline, *, start, **own):
        if self.ask is not None:
            return self.ask(pipeline, start=start, **own)
        seen = []

        def keep(_, step, time, found):
            seen.append(found["latents"])
            return {}

        given = pack(start[None]) if self.packs else start[None]
        (shown,) = pipeline(latents=given, callback_on_step_end=keep, return_dict=False, **own)
        latents = seen[-1]
        if self.packs:
            latents = unpack(latents, *start.shape[1:])
        elif latents.ndim == 3:
            latents = latents.transpose(1, 2).reshape(1, *start.shape)
        return latents, shown


def as_given(pictures):
    """Images, uint8 [H, W, 3], in a pipeline's input format."""
    shown = [Image.fromarray(picture.numpy()) for picture in pictures]
    return {"image": shown[0] if len(shown) == 1 else shown} if shown else {}


PICTURES = {
    "sd3_5_medium": TinyFamily(
        pipeline=lambda: tiny_sd3.pipeline(channels=16, blocks=(8,) * 4),
        adapter=SD3,
        call={"max_sequence_length": 16},
    ),
    "flux1_dev": TinyFamily(
        pipeline=tiny_flux.pipeline,
        adapter=Flux,
        scale="true_cfg_scale",
        packs=True,
        options={"embedded_guidance": 2.0},
        call={"guidance_scale": 2.0, "max_sequence_length": 16},
    ),
    "flux1_kontext": TinyFamily(
        pipeline=tiny_flux.kontext,
        adapter=FluxKontext,
        scale="true_cfg_scale",
        packs=True,
        shows=1,
        options={"embedded_guidance": 2.0},
        call={
            "guidance_scale": 2.0,
            "max_sequence_length": 16,
            "max_area": SIDE * (SIDE + 16),
            "_auto_resize": False,
        },
    ),
    "qwen_image_edit": TinyFamily(
        pipeline=tiny_qwen_image.edit,
        adapter=QwenImageEdit,
        tokens=360,
        scale="true_cfg_scale",
        packs=True,
        shows=2,
        wide=2 * SIDE,
        options={"images": 2},
        words=("model.adapter.images=2",),
    ),
    "qwen_image": TinyFamily(
        pipeline=tiny_qwen_image.pipeline,
        adapter=QwenImage,
        tokens=40,
        scale="true_cfg_scale",
        packs=True,
    ),
    "z_image": TinyFamily(
        pipeline=tiny_z_image.pipeline,
        adapter=ZImage,
        tokens=64,
        offset=1.0,
        call={"max_sequence_length": 64},
    ),
    "flux2_klein": TinyFamily(
        pipeline=tiny_flux2.klein,
        adapter=Flux2Klein,
        tokens=48,
        negative=False,
        latent=(16, SIDE // 16, SIDE // 16),
        words=("model.latent_size=64",),
        options={"embedded_guidance": None},
        call={"max_sequence_length": 48},
    ),
    "flux2_dev": TinyFamily(
        pipeline=tiny_flux2.dev,
        adapter=Flux2,
        tokens=48,
        scale=None,
        latent=(16, SIDE // 16, SIDE // 16),
        words=("model.latent_size=64",),
        options={"embedded_guidance": 3.0},
        call={"guidance_scale": 3.0, "max_sequence_length": 48},
    ),
    "sana_1_6b": TinyFamily(
        pipeline=tiny_sana.pipeline,
        adapter=Sana,
        tokens=24,
        wide=64,
        call={"max_sequence_length": 24, "use_resolution_binning": False},
        words=("model.latent_size=256",),
    ),
}
OF_WAN = {
    "options": {"frames": 5},
    "latent": (16, 2, SIDE // 8, SIDE // 8),
    "words": ("model.adapter.width=32", "model.adapter.frames=5", "model.latent_size=512"),
    "call": {"num_frames": 5, "max_sequence_length": 16},
}
FILMS = {
    "wan2_1_1_3b": TinyFamily(pipeline=tiny_wan.pipeline, adapter=Wan, **OF_WAN),
    "wan2_2_5b": TinyFamily(
        pipeline=lambda: tiny_wan.pipeline(expand_timesteps=True), adapter=Wan, **OF_WAN
    ),
    "wan2_2_14b": TinyFamily(
        pipeline=lambda: tiny_wan.pipeline(second=True), adapter=Wan, second=True, **OF_WAN
    ),
    "skyreels_v2_14b": TinyFamily(pipeline=tiny_wan.skyreels, adapter=SkyReelsV2, **OF_WAN),
    "wan2_1_i2v_14b": TinyFamily(
        pipeline=lambda: tiny_wan.of_picture(sees=True), adapter=WanImage, shows=1, **OF_WAN
    ),
    "wan2_2_i2v_14b": TinyFamily(
        pipeline=lambda: tiny_wan.of_picture(second=True),
        adapter=WanImage,
        shows=1,
        second=True,
        **OF_WAN,
    ),
    "wan2_2_5b_i2v": TinyFamily(
        pipeline=lambda: tiny_wan.of_picture(expand_timesteps=True),
        adapter=WanImage,
        shows=1,
        held=1,
        **OF_WAN,
    ),
    "hunyuan_video_1_5": TinyFamily(
        pipeline=tiny_hunyuan_video.pipeline,
        adapter=tiny_hunyuan_video.FewLetters,
        tokens=tiny_hunyuan_video.TOKENS,
        scale=GUIDER,
        ask=tiny_hunyuan_video.ask,
        loads=False,
        options={"frames": 5},
        latent=(8, 2, SIDE // 16, SIDE // 16),
        words=("model.adapter.width=32", "model.adapter.frames=5", "model.latent_size=64"),
        call={"num_frames": 5},
    ),
    "hunyuan_video": TinyFamily(
        pipeline=tiny_hunyuan_video_1.pipeline,
        adapter=HunyuanVideo1,
        tokens=tiny_hunyuan_video_1.TOKENS,
        scale="true_cfg_scale",
        options={"frames": 5, "embedded_guidance": 2.0},
        latent=(8, 2, SIDE // 8, SIDE // 8),
        words=("model.adapter.width=32", "model.adapter.frames=5", "model.latent_size=256"),
        call={
            "num_frames": 5,
            "guidance_scale": 2.0,
            "max_sequence_length": tiny_hunyuan_video_1.TOKENS,
        },
    ),
    "ltx_video": TinyFamily(
        pipeline=tiny_ltx.pipeline,
        adapter=LTX,
        tokens=16,
        ask=tiny_ltx.ask,
        options={"frames": 5},
        wide=64,
        latent=(16, 3, 4, 4),
        words=("model.adapter.width=32", "model.adapter.frames=5", "model.latent_size=768"),
        call={"num_frames": 5, "max_sequence_length": 16},
    ),
    "ltx_2": TinyFamily(
        pipeline=tiny_ltx2.pipeline,
        adapter=LTX2,
        tokens=24,
        ask=tiny_ltx2.ask,
        options={"frames": 5},
        wide=64,
        latent=(16 + 4, 3, 4, 4),  # four for 5 tokens of sound
        words=("model.adapter.width=32", "model.adapter.frames=5", "model.latent_size=960"),
        call={"num_frames": 5, "max_sequence_length": 24},
    ),
}
FAMILIES = PICTURES | FILMS  # each a preset
VARIANTS = {
    "ltx_video_0_9_1": replace(
        FILMS["ltx_video"], pipeline=lambda: tiny_ltx.pipeline(timestep_conditioning=True)
    ),
    "flux2_klein_edit": TinyFamily(
        pipeline=tiny_flux2.klein,
        adapter=Flux2Klein,
        tokens=48,
        negative=False,
        shows=2,
        high=64,  # its minimum
        wide=80,
        options={"embedded_guidance": None, "images": 2},
        latent=(16, SIDE // 16, SIDE // 16),
        call={"max_sequence_length": 48},
    ),
    "wan2_2_14b_two_scales": TinyFamily(
        pipeline=lambda: tiny_wan.pipeline(second=True),
        adapter=Wan,
        **OF_WAN
        | {
            "options": {"frames": 5, "guidance_scale_2": 1.5},
            "call": {**OF_WAN["call"], "guidance_scale_2": 1.5},
        },
    ),
}
