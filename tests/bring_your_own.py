"""Parts that are brought from outside the package: `make parts` writes the page that shows them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "bring_your_own"
PAGE = ROOT / "docs" / "bring_your_own.md"

FLOW = ("model=tiny_flow", "algorithm=flow_grpo")
# Folder -> what chooses its part, and a number of it, and what it is called with.
PARTS = {
    "reward": (("reward=vowels", "reward.vowels.function.wanted=ab"),
               "`(output, prompt, *, numbers)` -> a number, or None where there is none"),
    "policy_loss": (("algorithm/loss=tempered", "algorithm.loss.power=0.7"),
                    "`(batch, *, numbers)` -> the loss of each step, [B, T]"),
    "adv_estimator": (("algorithm/advantage=over_median", "algorithm.advantage.scale=2"),
                      "`(scores, rollout, *, numbers)` -> advantages, [B, T]"),
    "weights": (("algorithm/weights=root_length",),
                "`(mask, *, numbers)` -> the weight of each step of an update, [B, T]"),
    "correction": (("algorithm/importance_sampling=root", "algorithm.importance_sampling.most=3"),
                   "`(batch, *, numbers)` -> what the loss of a step is multiplied by, [B, T]"),
    "kl": (("algorithm/kl=absolute", "algorithm.kl.coef=0.1"),
           "`(batch, *, numbers)` -> the distance of each step to the reference, [B, T]"),
    "noise_schedule": (("dynamics/schedule=cosine", "dynamics.schedule.power=0.9"),
                       "`(steps, tokens, *, numbers)` -> sigma, [steps + 1] from 1 to 0"),
    "dynamics": (("dynamics=fading_sde", "dynamics.kernel.noise_level=0.6"),
                 "`(x, velocity, sigma, next_sigma, *, numbers)` -> `Step`, mean and std of x"),
    "dataset": (("data=reversals", "data.length=3"),
                "`(*, numbers, seed)` -> `Data`: prompts, held-out ones, demonstrations"),
    "model": (("model=tiny_llama", "model.build.layers=2"),
              "`(*, numbers, seed)` -> a causal language model of transformers and its tokenizer"),
    "rollout_engine": (("rollout=copying", "rollout.engine.every=1"),
                       "a `RolloutEngine`: `sync` takes weights, `answer` samples"),
    "flow_family": (("model=conv_flow",),
                    "an `Adapter` (policies/flow/protocol.py), here that of tiny_flow with another "
                    "network"),
}  # fmt: skip
# Folder -> what else a run of it needs.
BESIDE = {
    "noise_schedule": FLOW,
    "dynamics": FLOW,
    "flow_family": ("data=shapes",),
    "model": ("rollout.max_new_tokens=9",),
}

INTRODUCTION = """\
# Bring your own part

Written by `make parts` from `experiments/bring_your_own`, which the tests train.

A part is a function or a class in a module of yours, with a decorator of `tandem` above it.
`plugins=[module]` imports the module; the part is then an option of its group, `python train.py
--help plugins=[module]` lists it, and what stands in its signature with a default is a key. The
decorator declares facts (`contracts/facts.py` lists them), by which your part is admitted, refused
and swept like a built-in one of its kind. A bound stands in the annotation.

A file `conf/GROUP/NAME.yaml` beside the module offers an option of any group too, such as a whole
algorithm: [experiments/my_idea](../experiments/my_idea) is one. An error in your module is one line
with file and line number.
"""


def chosen(part: str) -> tuple[str, ...]:
    plugin = f"plugins=[experiments.bring_your_own.{part}]"
    return (plugin, *BESIDE.get(part, ()), *PARTS[part][0])


def page() -> str:
    return "\n".join([INTRODUCTION, *map(section, PARTS)])


def section(part: str) -> str:
    text = (FOLDER / part / "__init__.py").read_text(encoding="utf-8")
    title = text.partition(":")[0].strip('"')
    lines = len(text.splitlines())
    command = " ".join(["python train.py", *chosen(part)])
    return (
        f"## {title}\n\n{PARTS[part][1]}; `@register_{part}`, {lines} lines.\n\n"
        f"    {command}\n\n```python\n{text}```\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
