"""Published recipes of flows, and their memory: `python benchmarks/published.py [--save]`.

Computed by `estimate=true` from the models' shapes on the hub: no weight is read and nothing was
run. The table gives the smallest number of devices that hold the run, and the memory used on each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script

from benchmarks.largest import ROOM, print_table
from tandem.config import check, compose
from tandem.launch.memory_estimate import GIB, parts_of_a_rank, peak

DEVICES = (1, 8, 32)
FLOW_GRPO, NFT = "arXiv:2505.05470", "arXiv:2509.16117"
# From the repository yifan123/flow_grpo; DiffusionNFT uses the same rows.
DATA = {
    "OCR": "dataset/ocr", "PickScore": "dataset/pickscore", "Multi": "dataset/pickscore",
    "GenEval": "dataset/geneval/train_metadata.jsonl",
}  # fmt: skip
ROWS = {"GenEval": ("data=jsonl",)}
CHAT = "reward.unified_reward.function.chat"
VIDEO_REWARD = (
    "reward.video_align.function.part=VQ",
    "reward.video_align.function.frames=14",  # two per second of 53 at 8 per second, in pairs
    "reward.video_align.function.weights=video_reward.safetensors",
    "reward.video_align.function.settings=model_config.json",
)
UNIFIED = ("reward=unified_reward", f"{CHAT}.url=http://127.0.0.1:8000/v1",
           f"{CHAT}.model=UnifiedReward-7b-v1.5")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Published:
    """One recipe: its command, and its authors' result."""

    task: str
    model: str
    words: tuple[str, ...]  # of the command line, beside model and data
    data: str  # data.path
    result: str

    @property
    def command(self) -> tuple[str, ...]:
        """The command for one device."""
        given = any(word.startswith("data=") for word in self.words)
        return (f"model={self.model}", *self.words, *(() if given else ("data=folder",)))

    def on(self, devices: int) -> tuple[str, ...]:
        """The command for that many devices."""
        several = ("trainer=fsdp2", f"trainer.devices={devices}") if devices > 1 else ()
        return (*self.command, *several)


def _flow_grpo(task: str, model: str, reward: str, result: str, *more: str) -> Published:
    words = ("algorithm=flow_grpo", *more, f"reward={reward}", *ROWS.get(task, ()))
    return Published(task=task, model=model, words=words, data=DATA[task], result=result)


def _nft(task: str, rewards: str, result: str, *more: str) -> Published:
    words = ("algorithm=nft", *more, f"reward={rewards}", *ROWS.get(task, ()))
    return Published(task=task, model="sd3_5_medium", words=words, data=DATA[task], result=result)


PAPERS = (
    _flow_grpo("OCR", "sd3_5_medium", "ocr", f"0.59 → 0.92, {FLOW_GRPO}",
               "recipe=papers/flow_grpo_ocr_sd3_5_medium"),
    _flow_grpo("GenEval", "sd3_5_medium", "geneval", f"0.63 → 0.95, {FLOW_GRPO}",
               "recipe=papers/flow_grpo_geneval_sd3_5_medium"),
    _flow_grpo("PickScore", "sd3_5_medium", "pickscore", f"not in its abstract, {FLOW_GRPO}",
               "recipe=papers/flow_grpo_pickscore_sd3_5_medium"),
    _flow_grpo("OCR", "flux1_dev", "ocr", "none: the numbers are those of PickScore"),
    _flow_grpo("GenEval", "flux1_dev", "geneval", "a curve beside its code, flow_grpo's README",
               "dynamics=cps", "recipe=papers/flow_grpo_geneval_flux1_dev"),
    _flow_grpo("PickScore", "flux1_dev", "pickscore",
               "a curve beside its code, flow_grpo's README"),
    _nft("GenEval", "geneval", f"0.24 → 0.98 in 1000 updates, {NFT}",
         "recipe=papers/nft_sd3_5_medium"),
    _nft("OCR", "ocr", f"not in its abstract, {NFT}", "recipe=papers/nft_ocr_sd3_5_medium"),
    _nft("PickScore", "pickscore", f"not in its abstract, {NFT}",
         "recipe=papers/nft_sd3_5_medium"),
    # Their CLIP score is the cosine, without the factor of 100.
    _nft("Multi", "[pickscore,hpsv2,clip_score]", f"not in its abstract, {NFT}",
         "recipe=papers/nft_multi_sd3_5_medium", "reward.clip_score.weight=0.01",
         "reward.hpsv2.function.weights=HPS_v2.1.safetensors"),
    _flow_grpo("OCR", "wan2_1_1_3b", "ocr", "none; one GPU, flow_grpo's README",
               "recipe=papers/flow_grpo_ocr_wan2_1_1_3b", "reward.ocr.frames=9",
               "reward.ocr.of_frames=positive"),
    Published(
        task="VideoAlign VQ", model="hunyuan_video", data="video_prompts.txt",
        words=("algorithm=dance_grpo", "recipe=papers/dance_grpo_vq_hunyuan_video",
               "data=text", "reward=video_align", *VIDEO_REWARD),
        result="VQ 50 to 60 % higher, DanceGRPO's README",
    ),
    Published(
        task="UnifiedReward", model="qwen_image", data="prompts.txt",
        words=("algorithm=flow_grpo", "dynamics/schedule=linear_shift",
               "recipe=papers/flow_grpo_unified_reward_qwen_image", "data=text", *UNIFIED),
        result="none for this script, CodeGoat24/Pref-GRPO",
    ),
)  # fmt: skip

CLIP_L = {"model_type": "clip_text_model", "hidden_size": 768, "intermediate_size": 3072,
          "num_hidden_layers": 12, "num_attention_heads": 12, "projection_dim": 768}  # fmt: skip
CLIP_G = CLIP_L | {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
                   "num_attention_heads": 20, "projection_dim": 1280}  # fmt: skip
T5_XXL = {"model_type": "t5", "d_model": 4096, "d_kv": 64, "d_ff": 10_240, "num_layers": 24,
          "num_heads": 64, "feed_forward_proj": "gated-gelu", "vocab_size": 32_128}  # fmt: skip
UMT5_XXL = T5_XXL | {"model_type": "umt5", "vocab_size": 256_384}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 128_320}  # fmt: skip
QWEN_VL = {
    "model_type": "qwen2_5_vl",
    "text_config": {"model_type": "qwen2_5_vl_text", "hidden_size": 3584,
                    "intermediate_size": 18_944, "num_hidden_layers": 28,
                    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064},
    "vision_config": {"model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280,
                      "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584},
}  # fmt: skip
STILLS = {  # the VAE of SD 3.5 and FLUX.1
    "_class_name": "AutoencoderKL", "latent_channels": 16, "layers_per_block": 2,
    "block_out_channels": [128, 256, 512, 512], "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4, "use_quant_conv": False,
    "use_post_quant_conv": False, "shift_factor": 0.0609, "scaling_factor": 1.5305,
}  # fmt: skip
SHIFTING = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
# model -> the pipeline, and of each part its library, its class and its configuration
SHAPES: Mapping[str, tuple[str, Mapping[str, tuple[str, str, Mapping]]]] = {
    "sd3_5_medium": ("StableDiffusion3Pipeline", {
        "transformer": ("diffusers", "SD3Transformer2DModel", {
            "sample_size": 128, "num_layers": 24, "num_attention_heads": 24,
            "caption_projection_dim": 1536, "pos_embed_max_size": 384, "qk_norm": "rms_norm",
            "in_channels": 16, "out_channels": 16, "joint_attention_dim": 4096,
            "pooled_projection_dim": 2048, "dual_attention_layers": [*range(13)],
        }),
        "vae": ("diffusers", "AutoencoderKL", STILLS),
        "text_encoder": ("transformers", "CLIPTextModelWithProjection", CLIP_L),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", CLIP_G),
        "text_encoder_3": ("transformers", "T5EncoderModel", T5_XXL),
    }),
    "flux1_dev": ("FluxPipeline", {
        "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": True}),
        "vae": ("diffusers", "AutoencoderKL", STILLS),
        "text_encoder": ("transformers", "CLIPTextModel", CLIP_L),
        "text_encoder_2": ("transformers", "T5EncoderModel", T5_XXL),
    }),
    "wan2_1_1_3b": ("WanPipeline", {
        "transformer": ("diffusers", "WanTransformer3DModel", {
            "num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30,
        }),
        "vae": ("diffusers", "AutoencoderKLWan", {}),
        "text_encoder": ("transformers", "UMT5EncoderModel", UMT5_XXL),
    }),
    "hunyuan_video": ("HunyuanVideoPipeline", {
        "transformer": ("diffusers", "HunyuanVideoTransformer3DModel", {}),
        "vae": ("diffusers", "AutoencoderKLHunyuanVideo", {}),
        "text_encoder": ("transformers", "LlamaModel", LLAMA),
        "text_encoder_2": ("transformers", "CLIPTextModel", CLIP_L),
    }),
    "qwen_image": ("QwenImagePipeline", {
        "transformer": ("diffusers", "QwenImageTransformer2DModel", {}),
        "vae": ("diffusers", "AutoencoderKLQwenImage", {}),
        "text_encoder": ("transformers", "Qwen2_5_VLForConditionalGeneration", QWEN_VL),
    }),
}  # fmt: skip


def lines() -> Iterator[str]:
    yield "| task | model | `python train.py ...` | devices x GiB | published | here |"
    yield "|---" * 6 + "|"
    for paper in PAPERS:
        devices, held = fewest(paper)
        command = f"`{' '.join(paper.on(devices))} data.path={paper.data}`"
        cells = paper.task, f"`{paper.model}`", command, held
        yield f"| {' | '.join((*cells, paper.result, 'not run here'))} |"


def fewest(paper: Published) -> tuple[int, str]:
    """The smallest number of devices that hold the run, and `devices x GiB`."""
    with TemporaryDirectory() as folder:
        write(paper.model, Path(folder))
        for devices in DEVICES:
            gib = memory_per_device(paper, Path(folder), devices)
            if gib <= ROOM:
                return devices, f"{devices} x {gib:.0f}"
    return DEVICES[-1], f"none of {DEVICES[-1]} ({gib:.0f})"


def memory_per_device(paper: Published, folder: Path, devices: int) -> float:
    """GiB on each of `devices`."""
    cfg = compose([*paper.on(devices), f"model.path={folder}", "data.path=prompts"])
    return peak(parts_of_a_rank(cfg, check(cfg), devices)) / GIB


def write(model: str, folder: Path) -> None:
    """Write a pipeline of that size without weights."""
    pipeline, parts = SHAPES[model]
    index: dict[str, object] = {"_class_name": pipeline}
    for name, (library, kind, shape) in parts.items():
        index[name] = [library, kind]
        own = {"_class_name": kind} if library == "diffusers" else {"architectures": [kind]}
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps({**own, **shape}))
        (folder / name.replace("text_encoder", "tokenizer")).mkdir(exist_ok=True)
    (folder / "scheduler").mkdir(exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SHIFTING))
    (folder / "model_index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    print_table(lines(), "published.md", __doc__)
