"""Parts from outside the package: the overrides that choose each, and the page that shows it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "bring_your_own"
HOWTO = ROOT / "docs" / "howto"

FLOW = ("model=tiny_flow", "algorithm=flow_grpo")
# Folder -> the page that shows its part, the overrides that choose it, and one of its numbers.
PARTS = {
    "reward": ("reward", ("reward=vowels", "reward.vowels.function.wanted=ab")),
    "environment": ("environment", ("environment=tries", "environment.world.most=2")),
    "policy_loss": ("loss", ("algorithm/loss=tempered", "algorithm.loss.power=0.7")),
    "adv_estimator": (
        "advantage", ("algorithm/advantage=over_median", "algorithm.advantage.scale=2"),
    ),
    "weights": ("loss", ("algorithm/weights=root_length",)),
    "correction": (
        "loss", ("algorithm/importance_sampling=root", "algorithm.importance_sampling.most=3"),
    ),
    "kl": ("loss", ("algorithm/kl=absolute", "algorithm.kl.coef=0.1")),
    "noise_schedule": ("dynamics", ("dynamics/schedule=cosine", "dynamics.schedule.power=0.9")),
    "dynamics": ("dynamics", ("dynamics=fading_sde", "dynamics.kernel.noise_level=0.6")),
    "dataset": ("data", ("data=reversals", "data.length=3")),
    "model": ("model", ("model=tiny_llama", "model.build.layers=2")),
    "rollout_engine": ("engine", ("rollout=copying", "rollout.engine.every=1")),
    "quantization": (
        "../memory", ("model/quantization=few_bits", "model.quantization.most=100"),
    ),
    "flow_family": ("flow_family", ("model=conv_flow",)),
}  # fmt: skip
# Folder -> further overrides that its run needs.
BESIDE = {
    "noise_schedule": FLOW,
    "dynamics": FLOW,
    "flow_family": ("data=shapes",),
    "model": ("rollout.max_new_tokens=9",),
    "quantization": ("model.lora={r:4,alpha:8}", "warm_start=null"),
}


def choose(part: str) -> tuple[str, ...]:
    """The overrides that train with a part."""
    plugin = f"plugins=[experiments.bring_your_own.{part}]"
    return (plugin, *BESIDE.get(part, ()), *PARTS[part][1])


def page(part: str) -> str:
    """The text of the page that shows the part."""
    return (HOWTO / f"{PARTS[part][0]}.md").read_text(encoding="utf-8")
