"""The embedded flow model that shares its layers with a language model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tandem.policies.activations import recompute_activations
from tandem.policies.flow.families.sd3_transformer import image_tokens
from tandem.policies.flow.families.tiny_flow import CHANNELS, SIZE, TinyFlow
from tandem.policies.flow.records import Condition, PromptInput

WORDS, PATCH = 4, 4  # tokens of a text, and pixels along a side of a patch
CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"


class PatchVelocity(nn.Module):
    """Predicts velocities of image patches that follow a text, with the layers of a language model.
    Attention is causal for words; patches attend to all words and all patches. Only patches
    receive the noise level.
    """

    def __init__(self, layers: nn.Module, *, channels: int, size: int, patch: int) -> None:
        """`layers`: the language model's own embeddings and blocks, shared with it."""
        from diffusers.models.embeddings import TimestepEmbedding, Timesteps
        from diffusers.models.normalization import AdaLayerNormContinuous

        super().__init__()
        width, self.patch = layers.config.hidden_size, patch
        self.places, numbers = image_tokens(size, patch), channels * patch**2
        self.patch_in = nn.Linear(numbers, width)
        self.place = nn.Parameter(0.02 * torch.randn(self.places, width))
        self.frequencies = Timesteps(width, flip_sin_to_cos=True, downscale_freq_shift=0)
        self.time = TimestepEmbedding(width, width)
        self.norm_out = AdaLayerNormContinuous(width, width, elementwise_affine=False, eps=1e-6)
        self.patch_out = nn.Linear(width, numbers)
        self.to(next(layers.parameters()).dtype)
        self.layers = layers

    def forward(self, x: Tensor, sigma: Tensor, tokens: Tensor, seen: Tensor) -> Tensor:
        """[N, C, H, W]. sigma: [N]; tokens: [N, L] int64; seen: [N, L] bool, False for padding."""
        dtype, size = self.place.dtype, x.shape[-2:]
        time = self.time(self.frequencies(1000 * sigma).to(dtype))
        folded = nn.functional.unfold(x.to(dtype), self.patch, stride=self.patch).transpose(1, 2)
        patches = self.patch_in(folded) + self.place + time[:, None]
        words = self.layers.get_input_embeddings()(tokens).to(dtype)
        states = self.layers(
            inputs_embeds=torch.cat([words, patches], 1),
            attention_mask=attention_of(seen, self.places, dtype),
            use_cache=False,
        ).last_hidden_state[:, -self.places :]
        velocity = self.patch_out(self.norm_out(states, time))
        unfolded = velocity.transpose(1, 2)
        return nn.functional.fold(unfolded, size, self.patch, stride=self.patch)

    def own_state(self) -> dict[str, Tensor]:
        """The weights other than the language model's layers. Of any shape [...]."""
        state = self.state_dict().items()
        return {name: x for name, x in state if not name.startswith("layers.")}

    def enable_gradient_checkpointing(self) -> None:
        recompute_activations(self.layers)


def attention_of(seen: Tensor, patches: int, dtype: torch.dtype) -> Tensor:
    """The additive attention mask, 0 or the lowest number: [N, 1, S, S], over L words and then the
    patches. seen: [N, L] bool, the words that are no padding."""
    words = seen.shape[1]
    place = torch.arange(words + patches, device=seen.device)
    is_patch = place >= words
    before = place[None, :] <= place[:, None]
    present = torch.cat([seen, seen.new_ones(len(seen), patches)], 1)
    sees = torch.where(is_patch[:, None], present[:, None, :], before)[:, None]
    blocked = torch.finfo(dtype).min
    return torch.zeros(sees.shape, dtype=dtype, device=seen.device).masked_fill(~sees, blocked)


class TinyUnified(TinyFlow):
    """Reads up to four tokens of text. An image is its own latent: 16 x 16 RGB in [-1, 1]. Its
    transformer is that of the language model which wrote the text."""

    patch = PATCH

    def __init__(
        self,
        *,
        seed: int = 0,  # seed of the heads' initial weights
    ) -> None:
        """`seed`: of the heads' initial weights."""
        super().__init__(seed=seed)
        self.layers: nn.Module | None = None

    def share(self, layers: nn.Module, tokenizer: Any) -> None:
        self.layers, self.tokenizer = layers, tokenizer

    @property
    def tokens(self) -> tuple[int, int]:
        return image_tokens(SIZE, self.patch), WORDS

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        if self.layers is None:
            raise ValueError(
                "model.picture.adapter: TinyUnified needs the layers of a language model; set "
                "model._target_=tandem.policies.chain.unified.UnifiedPolicy, as model=tiny_unified"
            )
        own = next(self.layers.parameters()).dtype
        if dtype not in (None, own):
            raise ValueError(
                f"model.picture.dtype differs from that of the layers, {own}; "
                "set it to the same value as model.text.dtype"
            )
        network = self._new()
        if path is not None:
            read_heads(network, Path(path) / "transformer")
        check_sight(network)
        return network

    def _new(self) -> PatchVelocity:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return PatchVelocity(self.layers, channels=CHANNELS, size=SIZE, patch=self.patch)

    def outline(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        with torch.device("meta"):
            return self._new()

    def blank(self, rows: int) -> Condition:
        tokens = torch.empty(rows, WORDS, dtype=torch.int64, device="meta")
        return {"tokens": tokens, "seen": tokens.bool()}

    def refuse(self, text: str) -> str | None:
        count = len(self.read(text))
        return f"has {count} tokens, but tiny_unified reads {WORDS}" if count > WORDS else None

    def read(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        """Token ids only: their embeddings are trained, so each pass looks them up."""
        return (pad_tokens(self.read(one.text)[:WORDS], device) for one in inputs)

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        return network(x, sigma, condition["tokens"], condition["seen"])

    def reader(self, network: nn.Module) -> tuple[nn.Module, int]:
        return network.norm_out, network.place.shape[1]

    def save(self, network: nn.Module, folder: Path) -> None:
        """Save the heads; the layers are saved with the language model."""
        from safetensors.torch import save_file

        place = folder / "transformer"
        place.mkdir(parents=True, exist_ok=True)
        own = {name: x.detach().cpu().contiguous() for name, x in network.own_state().items()}
        save_file(own, place / WEIGHTS)
        sizes = {"_class_name": type(network).__name__, "patch_size": network.patch}
        (place / CONFIG).write_text(json.dumps(sizes, indent=2), encoding="utf-8")

    def save_lora(self, network: nn.Module, folder: Path) -> None:
        raise NotImplementedError("the language model saves the layers and their adapters")


def pad_tokens(ids: Sequence[int], device: torch.device) -> Condition:
    """Token ids padded with 0, and their mask: [L] int64, [L] bool."""
    row = torch.tensor([*ids, *[0] * (WORDS - len(ids))], dtype=torch.int64, device=device)
    return {"tokens": row, "seen": torch.arange(WORDS, device=device) < len(ids)}


def read_heads(network: PatchVelocity, folder: Path) -> None:
    """Load the heads that `save` wrote. Raises ValueError for heads of another size."""
    from safetensors.torch import load_file

    saved, own = load_file(folder / WEIGHTS), network.own_state()
    odd = [name for name in own if name not in saved or saved[name].shape != own[name].shape]
    if odd or len(saved) != len(own):
        raise ValueError(
            f"model.picture.path={folder.parent}: its heads belong to another model: "
            f"{(odd or sorted(saved.keys() - own.keys()))[0]} does not match"
        )
    for name, x in own.items():
        x.copy_(saved[name])


@torch.no_grad()
def check_sight(network: PatchVelocity) -> None:
    """Check that the first patch attends to the last: a model may ignore the mask silently.

    Raises ValueError if it does.
    """
    layers = network.layers
    device, side = network.place.device, SIZE
    x = torch.zeros(1, CHANNELS, side, side, device=device)
    changed = x.index_fill(2, torch.tensor([side - 1], device=device), 1.0)
    tokens, seen = pad_tokens([1], device).values()
    rest = torch.ones(1, device=device), tokens[None], seen[None]
    before, after = (network(picture, *rest) for picture in (x, changed))
    if torch.equal(before[..., 0, 0], after[..., 0, 0]):
        raise ValueError(
            f"model.text: {type(layers).__name__} does not let the first patch of a picture see "
            "the last one; choose another model or attn_implementation"
        )
