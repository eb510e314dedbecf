"""The sections of the GPU benchmark in order of importance, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

LORA = "model.lora={r: 32, alpha: 64, target_modules: all-linear}"  # as in model=qwen3_8b


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Prompts of `shortest` to `longest` tokens, each answered `group` times."""

    shape: str
    prompts: int
    group: int
    new: int  # tokens of an answer
    shortest: int
    longest: int
    budget: int  # tokens of a micro-batch
    compared: tuple[int, ...] = ()  # rows at once in the comparison of sampling methods


@dataclass(frozen=True, slots=True, kw_only=True)
class Paintings:
    shape: str
    prompts: int
    group: int
    steps: int  # denoising steps
    resolution: int
    text_tokens: int
    rows: int  # of a pass of training


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One line of the report, measured in a process of its own."""

    name: str
    measure: str  # a function of `gpu_sections.MEASURES`
    size: Answers | Paintings
    overrides: tuple[str, ...] = ()
    iterations: int = 3  # the first one warms up
    limit: int = 120  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    small: Answers  # Qwen3-0.6B
    large: Answers  # Qwen3-8B
    painted: Paintings  # SD3.5-M
    matrix: int  # side of the product that measures the device's peak
    sections: tuple[Section, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sections", tuple(sections(self)))


def sections(sizes: Sizes) -> list[Section]:
    """All sections; `overrides` holds what a preset leaves open."""
    small, large, painted = sizes.small, sizes.large, sizes.painted
    mixed = "trainer.precision=bf16-mixed"
    wide = ("model.dtype=float32", "model.lora=null", "model.gradient_checkpointing=false")
    narrow = ("model.dtype=bfloat16", LORA, "model.gradient_checkpointing=true")
    bare = ("model.dtype=bfloat16", "model.lora=null", "algorithm.kl.coef=0")
    compiled = "model.torch_compile=true"

    def section(name: str, measure: str, size: Answers | Paintings, *own: str, **more) -> Section:
        return Section(name=name, measure=measure, size=size, overrides=own, **more)

    return [
        section("ceilings", "ceilings", small),
        section("qwen3-0.6b full, bf16-mixed", "tokens", small, *wide, mixed),
        section("qwen3-0.6b sampling", "sampling", small, *narrow, limit=150),
        section("qwen3-8b lora", "tokens", large, *narrow),
        section("sd3.5-m flow_grpo, lora", "pictures", painted, "algorithm=flow_grpo"),
        section("sd3.5-m nft, lora", "pictures", painted, "algorithm=nft"),
        section("qwen3-8b sampling", "sampling", large, *narrow, limit=150),
        section("qwen3-8b lora, bf16-mixed", "tokens", large, *narrow, mixed),
        section("qwen3-0.6b head", "heads", small),
        section("qwen3-0.6b waits", "waiting", small, *narrow, iterations=1),
        section("qwen3-0.6b full, 32-true", "tokens", small, *wide),
        section("qwen3-0.6b lora", "tokens", small, *narrow),
        section("qwen3-8b lora, compiled", "tokens", large, *narrow, compiled, limit=180),
        section(
            "sd3.5-m flow_grpo, lora, compiled", "pictures", painted,
            "algorithm=flow_grpo", compiled, limit=180,
        ),
        section(
            "sd3.5-m flow_grpo, full", "pictures", painted,
            "algorithm=flow_grpo", "model.lora=null",
        ),
        section("qwen3-8b full, bfloat16", "tokens", large, *bare),
        section("qwen3-8b loading", "loading", large, *narrow, limit=240),
    ]  # fmt: skip


REAL = Sizes(
    small=Answers(
        shape="0.6b", prompts=16, group=8, new=128, shortest=64, longest=192, budget=16_384,
        compared=(64, 256),
    ),
    large=Answers(
        shape="8b", prompts=8, group=8, new=128, shortest=64, longest=192, budget=8_192,
        compared=(64,),
    ),
    painted=Paintings(
        shape="medium", prompts=2, group=4, steps=10, resolution=512, text_tokens=256, rows=8
    ),
    matrix=8192,
)  # fmt: skip
TINY = Sizes(
    small=Answers(
        shape="tiny", prompts=2, group=2, new=4, shortest=3, longest=6, budget=64, compared=(4,)
    ),
    large=Answers(
        shape="tiny", prompts=2, group=2, new=4, shortest=3, longest=6, budget=64, compared=(4,)
    ),
    painted=Paintings(
        shape="tiny", prompts=2, group=2, steps=3, resolution=32, text_tokens=4, rows=4
    ),
    matrix=64,
)
