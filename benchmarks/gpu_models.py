"""Models of real sizes with random weights, created on the device: parts of a configuration.

The weights are random; layers, sizes and the code that runs are those of the named model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.policies.flow.families.sd3 import SD3
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# The sizes of Qwen/Qwen3-0.6B and Qwen/Qwen3-8B on the hub.
QWEN3 = {
    "0.6b": {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": True,
    },
    "8b": {
        "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 12_288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": False,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "tie_word_embeddings": False,
    },
}  # fmt: skip
# The sizes of stabilityai/stable-diffusion-3.5-medium: the transformer, and the VAE.
SD3_TRANSFORMER = {
    "medium": {
        "sample_size": 128, "num_layers": 24, "attention_head_dim": 64,
        "num_attention_heads": 24, "joint_attention_dim": 4096, "caption_projection_dim": 1536,
        "pooled_projection_dim": 2048, "pos_embed_max_size": 384,
        "dual_attention_layers": tuple(range(13)),
    },
    "tiny": {
        "sample_size": 8, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2,
        "joint_attention_dim": 32, "caption_projection_dim": 16, "pooled_projection_dim": 64,
        "pos_embed_max_size": 8, "dual_attention_layers": (0,),
    },
}  # fmt: skip
SD3_VAE = {
    "medium": {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2},
    "tiny": {"block_out_channels": (8, 8, 8, 8), "layers_per_block": 1, "norm_num_groups": 4},
}
CHANNELS = 16  # of a latent picture


def qwen3_config(shape: str) -> Qwen3Config:
    from transformers import Qwen3Config

    return Qwen3Config(
        **QWEN3[shape],
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        pad_token_id=0,
        eos_token_id=1,
    )


def qwen3(
    *, shape: str, dtype: str, device: str
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A Qwen3 and a tokenizer in which every token is a word. Only one token ends an answer, so
    nearly all answers have the maximum length."""
    from transformers import AutoModelForCausalLM

    config = qwen3_config(shape)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    return model, words(config.vocab_size)


def words(vocabulary: int) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {word(i): i for i in range(3, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def word(token: int) -> str:
    return f"w{token}"


class RandomSD3(SD3):
    """Stable Diffusion 3.5: its transformer and its VAE. Random numbers replace text embeddings,
    because encoders run once per prompt and are then cached."""

    def __init__(
        self,
        *,
        shape: str,
        device: str,
        resolution: int,
        width: int | None = None,
        max_sequence_length: int,
        encoder_dtype: Literal["float32", "bfloat16"],
    ) -> None:
        super().__init__(
            resolution=resolution,
            width=width,
            max_sequence_length=max_sequence_length,
            encoder_dtype=encoder_dtype,
        )
        self.shape, self.place = shape, device
        self.asked: Callable[[int], None] = lambda rows: None  # called with the rows of every pass

    def load(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        from diffusers import AutoencoderKL, SD3Transformer2DModel

        kinds = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
        torch.manual_seed(0)
        with torch.device(self.place):
            self.network = SD3Transformer2DModel(
                **SD3_TRANSFORMER[self.shape],
                patch_size=2,
                in_channels=CHANNELS,
                out_channels=CHANNELS,
                qk_norm="rms_norm",
            ).to(dtype)
            self.vae = AutoencoderKL(
                **SD3_VAE[self.shape],
                down_block_types=kinds[0],
                up_block_types=kinds[1],
                latent_channels=CHANNELS,
                use_quant_conv=False,
                use_post_quant_conv=False,
                shift_factor=0.0609,
                scaling_factor=1.5305,
            ).eval()
        self.folder = f"random weights of shape {self.shape}"
        own = self.canvas(None)
        self.latent_shape, self.picture_tokens = own.latent_shape, own.tokens
        return self.fit(self.network)

    def outline(self, path: str | None, dtype: torch.dtype | None) -> nn.Module:
        self.place = "meta"
        return self.load(path, dtype or torch.float32)

    def outline_readers(self) -> list[nn.Module]:
        """None: random numbers replace their outputs."""
        return []

    def fingerprint(self) -> None:
        return None

    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        own = SD3_TRANSFORMER[self.shape]
        shapes = {
            "states": (self.text_tokens, own["joint_attention_dim"]),
            "pooled": (own["pooled_projection_dim"],),
        }
        for one in inputs:
            chance = torch.Generator().manual_seed(int(rng.key(one.text)))
            yield {name: torch.randn(shapes[name], generator=chance) for name in shapes}

    def velocity(
        self, network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        self.asked(len(x))
        return super().velocity(network, x, sigma, condition)
