"""The embedded flow models, in pixel space: a small U-Net and a small SD3 transformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.dynamics.guidance import guide
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.families.folders import load_network
from tandem.policies.flow.families.sd3_transformer import (
    image_tokens,
    velocity,
    without_unread_queries,
)
from tandem.policies.flow.lora import ATTENTION, save_lora
from tandem.policies.flow.records import Condition, PromptInput

SIZE, CHANNELS = 16, 3
WORDS, WIDTH = 5, 32  # words of a prompt, and the width of a word's vector
PAD = ""


class TinyFlow:
    """An SD3 transformer of 0.4 M parameters.

    Prompts have up to five words. An image is its own latent: 16 x 16 RGB in [-1, 1].
    """

    lora_targets = ATTENTION
    only_resolution = SIZE
    images = 0
    latent_shape = (CHANNELS, SIZE, SIZE)
    image_shape = (SIZE, SIZE, CHANNELS)

    def __init__(
        self,
        *,
        seed: int = 0,  # seed of the initial weights
        num_layers: int = 3,  # number of transformer blocks
        num_heads: int = 2,  # heads of attention, each 32 wide
    ) -> None:
        """`seed`: that of the initial weights; the word vectors do not depend on it.
        `num_layers`: blocks. `num_heads`: heads of attention, each 32 wide."""
        self.seed, self.num_layers, self.num_heads = seed, num_layers, num_heads

    @property
    def tokens(self) -> tuple[int, int]:
        return image_tokens(SIZE, self.patch), WORDS

    def canvas(self, resolution: int | tuple[int, int] | None, frames: int | None = None) -> Canvas:
        if resolution not in (None, SIZE, (SIZE, SIZE)) or frames is not None:
            asked = f"resolution={resolution}" if frames is None else f"frames={frames}"
            raise ValueError(
                f"evaluation.{asked}: tiny_flow generates {SIZE} x {SIZE} pixels; leave it null"
            )
        return Canvas(latent_shape=self.latent_shape, tokens=self.tokens[0])

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        network = self._new() if path is None else self._load_saved(Path(path), dtype)
        without_unread_queries(network)
        config = network.config
        self.patch = config.patch_size
        self.latent_shape = (config.in_channels, config.sample_size, config.sample_size)
        return network if dtype in (None, network.dtype) else network.to(dtype)

    def outline(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        """The loaded network, moved to the meta device: it is small enough to be loaded first."""
        return self.load(path, dtype).to("meta")

    def blank(self, rows: int) -> Condition:
        states = torch.empty(rows, WORDS, WIDTH, device="meta")
        return {"states": states, "pooled": states.flatten(1)}

    def other_networks(self) -> dict[str, list[nn.Module]]:
        """Nothing: there is no VAE and no text encoder."""
        return {}

    def _new(self) -> nn.Module:
        from diffusers import SD3Transformer2DModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return SD3Transformer2DModel(
                sample_size=SIZE,
                patch_size=4,
                in_channels=CHANNELS,
                out_channels=CHANNELS,
                num_layers=self.num_layers,
                num_attention_heads=self.num_heads,
                attention_head_dim=32,
                joint_attention_dim=WIDTH,
                caption_projection_dim=32 * self.num_heads,
                pooled_projection_dim=WORDS * WIDTH,
                pos_embed_max_size=4,
                qk_norm="rms_norm",
            )

    def _load_saved(self, folder: Path, dtype: torch.dtype | None) -> nn.Module:
        from diffusers import SD3Transformer2DModel

        return load_network(folder, "transformer", SD3Transformer2DModel, dtype)

    def fingerprint(self) -> None:
        return None

    def refuse(self, text: str) -> str | None:
        count = len(text.split())
        return f"has {count} words, but tiny_flow reads {WORDS}" if count > WORDS else None

    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        return ({name: x.to(device) for name, x in read(one.text).items()} for one in inputs)

    velocity = staticmethod(velocity)

    def guide(self, prompted: Tensor, unprompted: Tensor, *, scale: float, sigma: Tensor) -> Tensor:
        return guide(prompted, unprompted, scale=scale)

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.norm_out, network.inner_dim

    def decode(self, x0: Tensor) -> Tensor:
        return self.pixels(x0).cpu()

    def pixels(self, x0: Tensor) -> Tensor:
        """[N, *latent_shape] -> uint8 [N, H, W, 3], on the device of the latents."""
        pixels = ((x0.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 1).contiguous()

    def latents(self, images: Tensor, device: torch.device) -> Tensor:
        return images.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1

    def save(self, network: nn.Module, folder: Path) -> None:
        network.save_pretrained(folder / "transformer")

    def save_lora(self, network: nn.Module, folder: Path) -> None:
        from diffusers.loaders import SD3LoraLoaderMixin

        save_lora(network, folder, SD3LoraLoaderMixin)


class TinyUNetFlow(TinyFlow):
    """`model=tiny_flow`: `TinyFlow` with a small U-Net, which draws cleaner edges at equal cost."""

    lora_targets = ("modulate", "read_words")

    def __init__(
        self,
        *,
        seed: int = 0,  # seed of the initial weights
        channels: Sequence[int] = (32, 64),  # channels of each level of the U-Net, outermost first
    ) -> None:
        """`seed`: that of the initial weights. The word vectors do not depend on it.

        channels: per level of the U-Net, outermost first; each level halves height and width.
        """
        super().__init__(seed=seed)
        self.channels = list(channels)

    @property
    def tokens(self) -> tuple[int, int]:
        """Positions of the innermost level, and words."""
        return (SIZE // 2 ** len(self.channels)) ** 2, WORDS

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        network = self._new() if path is None else self._load_saved(Path(path), dtype)
        return network if dtype in (None, network.dtype) else network.to(dtype)

    def _new(self) -> nn.Module:
        from tandem.policies.flow.families.tiny_unet import TinyUNet

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return TinyUNet(channels=self.channels, text=WORDS * WIDTH)

    def _load_saved(self, folder: Path, dtype: torch.dtype | None) -> nn.Module:
        from tandem.policies.flow.families.tiny_unet import TinyUNet

        return load_network(folder, "transformer", TinyUNet, dtype)

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """The predicted velocity, noise - x0: [B, C, H, W], sigma [B]."""
        dtype = network.enter.weight.dtype
        return network(x.to(dtype), sigma, condition["pooled"].to(dtype))

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.states, network.config.channels[-1]


def read(text: str) -> Condition:
    """A fixed vector per word plus one per position.

    The transformer has no positional encoding of text: without one, "red circle and blue square"
    equals "blue circle and red square".
    """
    words = text.lower().split()[:WORDS]
    words = [*words, *[PAD] * (WORDS - len(words))]
    meaning = torch.stack([rng.normal(rng.key("tiny_flow word", w), (WIDTH,)) for w in words])
    place = rng.normal(rng.key("tiny_flow place"), (WORDS, WIDTH))
    states = meaning + 0.5 * place
    return {"states": states, "pooled": states.flatten()}
