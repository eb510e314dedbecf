"""Parity of Tandem's updates with TRL's: the same weights, answers and rewards through both.

TRL computes the loss from text and reward by its trainers, Tandem as by `python train.py`. Compared
are the gradient of every update at the same weights, and the weights after all updates, which each
side makes alone. A difference is the largest over all parameters divided by the largest value;
above 1e-6 and 1e-4 the exit code is 1. Needs `pip install -e ".[bench]"`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

from workloads import silent

if TYPE_CHECKING:
    from parity_tandem import Tensors

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
GRADIENT, WEIGHTS = 1e-6, 1e-4  # largest differences, relative
PROMPTS, GROUP, LONGEST = 8, 4, 16  # of one update; tokens of an answer
REWARD_WEIGHT = 4.0
LAG = 4  # updates since an answer was drawn, enough for clips to act
LEARNING_RATE = 5e-4
PACKAGES = ("trl", "transformers", "torch")
SCALE = 2.0  # of new weights: at their original scale attention hardly matters


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One algorithm, and the settings that make both sides equivalent."""

    trl: str  # the loss that it is compared with
    says: str  # what was set on Tandem's side, for the table
    overrides: tuple[str, ...]  # of Tandem's preset
    peer: str  # function of parity_trl
    numbers: Mapping[str, Any] = field(default_factory=dict)  # of TRL's config
    lag: int = 0  # updates between the drawing of answers and their own


NO_CORRECTION = "algorithm/importance_sampling=none"  # the sampler is the trainer here
GRPO = ("algorithm.kl.coef=0", "algorithm.entropy.coef=0", "algorithm.advantage.eps=1e-4")
SAMPLED = (NO_CORRECTION, "num_minibatches=1", f"group_size={GROUP}")
OF_GRPO = f"std + 1e-4; no KL, entropy bonus or correction; answers {LAG} updates old"
OF_TRL_SAMPLED = {
    "per_device_train_batch_size": PROMPTS * GROUP,
    "num_generations": GROUP,
    "max_completion_length": LONGEST,
    "reward_weights": [REWARD_WEIGHT],
    "epsilon": 0.2,
}
CASES = {
    "grpo": Case(
        trl="GRPOTrainer, loss_type=grpo",
        says=f"clip .2; {OF_GRPO}",
        overrides=("algorithm=grpo", *GRPO, *SAMPLED),
        peer="grpo",
        numbers={"loss_type": "grpo", **OF_TRL_SAMPLED},
        lag=LAG,
    ),
    "grpo_kl": Case(
        trl="GRPOTrainer, loss_type=grpo, beta .04",
        says="clip .2; std + 1e-4; KL of .04 inside the mean of each answer; no entropy bonus or "
        f"correction; answers {LAG} updates old",
        overrides=("algorithm=grpo", *GRPO[1:], "algorithm.kl.coef=0.04", *SAMPLED),
        peer="grpo",
        numbers={"loss_type": "grpo", "beta": 0.04, **OF_TRL_SAMPLED},
        lag=LAG,
    ),
    "dapo": Case(
        trl="GRPOTrainer, loss_type=dapo",
        says=f"clip .2 and .28; {OF_GRPO}; no second draw, no punishment of long answers; TRL's "
        "generation batch is one update, so both divide by its tokens",
        overrides=(
            "algorithm=dapo",
            "algorithm/sampling_strategy=on_policy",
            "algorithm/truncation_handling=train",
            *GRPO,
            *SAMPLED,
        ),
        peer="grpo",
        numbers={"loss_type": "dapo", "epsilon_high": 0.28, **OF_TRL_SAMPLED},
        lag=LAG,
    ),
    "rloo": Case(
        trl="RLOOTrainer",
        says="KL of .05 in the reward; fresh answers, where TRL's ratio of whole answers is 1",
        overrides=("algorithm=rloo", "algorithm.kl.coef=0.05", *SAMPLED),
        peer="rloo",
        numbers={"beta": 0.05, "normalize_advantages": False, **OF_TRL_SAMPLED},
    ),
    "dpo": Case(
        trl="DPOTrainer, loss_type=sigmoid",
        says="beta .1; nothing else to set",
        overrides=("algorithm=dpo",),
        peer="dpo",
        numbers={"loss_type": ["sigmoid"], "beta": 0.1, "per_device_train_batch_size": PROMPTS},
    ),
}
Result = dict[str, Any]


def main() -> None:
    chosen = arguments()
    if importlib.util.find_spec("trl") is None:
        sys.exit('trl is not installed: pip install -e ".[bench]"')
    os.environ.setdefault("PROJECT_ROOT", str(ROOT))
    results = []
    for name in chosen.only:
        with tempfile.TemporaryDirectory() as folder:
            results.append(compare(name, Path(folder), updates=chosen.updates, seed=chosen.seed))
        print(f"{name}: {results[-1]['verdict']}", flush=True)
    text = as_text(results, chosen.updates)
    print("\n" + text)
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "parity.json").write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "parity.md").write_text(text)
    sys.exit(any(result["verdict"] != "same" for result in results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(CASES)
    known = f"of {', '.join(names)} (all)"
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=known
    )
    parser.add_argument("--updates", type=int, default=50, help="updates of each algorithm (50)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts, answers (0)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/parity.*")
    return parser.parse_args()


def compare(name: str, folder: Path, *, updates: int, seed: int) -> Result:
    import parity_tandem
    import parity_trl

    from tandem.config import build, configuration

    case = CASES[name]
    save_model(folder / "start", seed)
    save_rows(folder / "prompts.jsonl", seed)
    overrides = (*shared_overrides(folder), *case.overrides, *silent(folder, updates))
    cfg = configuration(overrides)
    ours = parity_tandem.trail(cfg, folder, lag=case.lag, seed=seed)
    numbers = {"output_dir": str(folder / "trl"), **case.numbers}
    side = getattr(parity_trl, case.peer)(folder / "start", ours.given, numbers)
    theirs = parity_trl.gradients(side, ours.weights, lag=case.lag)
    pairs = list(zip(ours.gradients, theirs, strict=True))
    start, end = ours.weights[0], ours.weights[-1]
    optimizer = build(cfg.optimizer)
    their_end = parity_trl.train(side, start, optimizer, updates=updates, lag=case.lag)
    gradient, weights = max(apart(*pair) for pair in pairs), apart(end, their_end)
    return {
        "algorithm": name,
        "trl": case.trl,
        "set": case.says,
        "updates": updates,
        "gradient": gradient,
        "gradient_of_worst_parameter": max(worst_apart(*pair) for pair in pairs),
        "weights": weights,
        "weights_of_worst_parameter": worst_apart(end, their_end),
        "moved": apart(start, their_end),
        "clipped": sum(ours.clipped) / updates,
        "verdict": "same" if gradient <= GRADIENT and weights <= WEIGHTS else "DIFFERENT",
    }


def shared_overrides(folder: Path) -> tuple[str, ...]:
    """Overrides of all cases: the model in its own float64, the rewards, the batch."""
    return (
        "model=hf",
        f"model.path={folder / 'start'}",
        "model.dtype=auto",
        f"data.path={folder / 'prompts.jsonl'}",
        "reward=target_length",
        "reward.target_length.function.target=60",
        f"rollout.max_new_tokens={LONGEST}",
        f"reward.target_length.weight={REWARD_WEIGHT}",
        f"prompts_per_step={PROMPTS}",
        "max_tokens_per_microbatch=null",
        "micro_batch_size=6",  # no number may depend on the cut
        "max_grad_norm=1e9",
        f"optimizer.lr={LEARNING_RATE}",
        "guards.first_update_ratio=1e9",  # rows may be an update old
    )


def save_model(folder: Path, seed: int) -> None:
    import torch

    from tandem.policies.language.tiny_lm import tiny_lm

    model, tokenizer = tiny_lm(seed=seed, hidden_size=64, num_layers=2, head_dim=16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SCALE if parameter.ndim == 2 else 1.0)
    model.double().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_rows(path: Path, seed: int) -> None:
    """Prompts, with two answers each for losses on pairs."""
    chance = random.Random(seed)

    def text(longest: int) -> str:
        return "".join(chance.choices("abcdefgh", k=chance.randint(1, longest)))

    rows = {text(12): {"chosen": f"a{text(14)}", "rejected": f"b{text(14)}"} for _ in range(512)}
    lines = [json.dumps({"prompt": f"{prompt}>", **pair}) for prompt, pair in rows.items()]
    path.write_text("\n".join(lines) + "\n")


def apart(ours: Tensors, theirs: Tensors) -> float:
    """Largest |ours - theirs| of all parameters / largest |theirs|."""
    assert ours.keys() == theirs.keys()
    gap = max(float((ours[name] - x).abs().max()) for name, x in theirs.items())
    return gap / max(float(x.abs().max()) for x in theirs.values())


def worst_apart(ours: Tensors, theirs: Tensors) -> float:
    """The same for the worst parameter, relative to its own largest value."""
    return max(apart({name: ours[name]}, {name: x}) for name, x in theirs.items())


def as_text(results: list[Result], updates: int) -> str:
    head = (
        f"| algorithm | gradient (worst parameter) | weights after {updates} (worst parameter) | "
        "moved | clipped | verdict | TRL | set so that both mean the same |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    rows = [
        f"| {x['algorithm']} | {x['gradient']:.1e} ({x['gradient_of_worst_parameter']:.1e}) | "
        f"{x['weights']:.1e} ({x['weights_of_worst_parameter']:.1e}) | {x['moved']:.1%} | "
        f"{x['clipped']:.1%} | {x['verdict']} | {x['trl']} | {x['set']} |\n"
        for x in results
    ]
    same = sum(x["verdict"] == "same" for x in results)
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    closing = f"\n{same} of {len(results)} the same, weights in float64; {versions}\n"
    return head + "".join(rows) + closing


if __name__ == "__main__":
    main()
