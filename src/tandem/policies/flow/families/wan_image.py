"""Wan 2.1 and 2.2, image to video, loaded from a folder of `WanImageToVideoPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tandem.contracts import declare
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.families.images import SHOWN, fit_picture
from tandem.policies.flow.families.pipelines import Family
from tandem.policies.flow.families.wan import Wan
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import WanImageToVideoPipeline

SEEN = 257  # tokens of a picture in a CLIP of 224 pixels


@declare(shows=range(1, 2))
class WanImage(Wan):
    """The VAE encodes the picture as the first frame of an otherwise grey film; Wan 2.1 also
    encodes it with a CLIP. Wan 2.2 TI2V keeps it as the first latent frame."""

    family = Family(
        pipeline="WanImageToVideoPipeline",
        transformer="WanTransformer3DModel",
        vae="AutoencoderKLWan",
        model="wan2_1_i2v_14b",
        siblings=("WanPipeline",),  # TI2V supports both
    )
    readers = (*Wan.readers, "image_encoder", "image_processor")
    optional = frozenset({"image_encoder", "image_processor"})
    lora_targets = (*Wan.lora_targets, "attn2.add_k_proj", "attn2.add_v_proj")

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        if frames not in (None, self.frames) and not self.times_of_tokens:
            raise ValueError(
                f"evaluation.frames={frames}: the picture of a prompt is encoded with the "
                f"{self.frames} frames of model.adapter; leave it null"
            )
        return super().canvas(resolution, frames)

    def fit(self, network: nn.Module) -> nn.Module:
        own = super().fit(network).config
        if own.in_channels == own.out_channels and not self.times_of_tokens:
            raise ValueError(
                f"model.path={self.folder} is a text-to-video model; set model=wan2_1_1_3b"
            )
        return network

    @property
    def shown_tokens(self) -> int:
        """CLIP tokens of the picture; its latent adds channels, not tokens."""
        return 0 if self.network.config.image_dim is None else SEEN

    def blank(self, rows: int) -> Condition:
        config = self.network.config
        channels, frames, *sides = self.latent_shape
        shape = rows, 1, channels, 1 if self.times_of_tokens else frames, *sides
        given = super().blank(rows) | {SHOWN: torch.empty(shape, device="meta")}
        if config.image_dim is not None:
            given["seen"] = torch.empty(rows, SEEN, config.image_dim, device="meta")
        return given

    def condition(
        self, pipeline: WanImageToVideoPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        (picture,) = (one.load() for one in asked.images)
        given = super().condition(pipeline, asked, device)
        if self.network.config.image_dim is not None:
            given["seen"] = pipeline.encode_image(picture.permute(2, 0, 1), device)[0]
        size = asked.size or self.image_shape[-3:-1]
        film = torch.full((self.frames, *size, 3), 127.5)
        film[0] = fit_picture(picture, size)
        frames = film[:1] if self.times_of_tokens else film
        return given | {SHOWN: self.latents(frames[None], device)}

    def of_one(self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        shown = condition[SHOWN][:, 0]
        if not self.times_of_tokens:
            known = torch.zeros_like(x[:, : self.stride])
            known[:, :, 0] = 1
            return self.call_transformer(
                network, torch.cat([x, known, shown], 1), 1000 * sigma, condition
            )
        first, rest = shown[:, :, :1], x[:, :, 1:]
        of_frames = pad(1000 * sigma[:, None].expand(-1, rest.shape[2]), (1, 0))
        tokens = x[0, 0, 0].numel() // self.geometry().patch ** 2
        time = of_frames.repeat_interleave(tokens, 1)
        said = self.call_transformer(network, torch.cat([first, rest], 2), time, condition)
        # With this velocity the first frame ends as the picture, wherever it started.
        back = (x[:, :, :1] - first) / sigma.view(-1, 1, 1, 1, 1)
        return torch.cat([back, said[:, :, 1:]], 2)
