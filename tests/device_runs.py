"""Whole runs on the pretended device: `make waits` counts how often each waits for it, and copies
to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from forwards import OF_ERRORS
from hub_language_models import write_qwen3
from laws.bench import OF_FLOWS
from matrix import (
    OF_EPISODES,
    OF_PAIRS,
    ON_FRESH_SAMPLES,
    PAIRS,
    PRESETS,
    TAUGHT,
    ticks,
    write_world,
)
from omegaconf import OmegaConf
from policies.engines.loopback import Loopback, serving
from policies.flow.tiny_flux import write_flux
from policies.flow.tiny_qwen_image import write_qwen_image
from policies.flow.tiny_sd3 import write_pipeline

import tandem

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("pretend_device.py")
KEPT = ROOT / "benchmarks" / "results" / "waits.json"
PAGE = KEPT.with_suffix(".md")
SMALL = (
    "iterations=2", "prompts_per_step=2", "evaluation.every=null", "checkpoints.every=2",
    "warm_start=null", "guards.no_signal=100", "logger=none",
    "guards.stalled_after=null",
)  # fmt: skip
WORDS = ("group_size=8", "reward=target_length", "reward.target_length.function.target=5")
LORA = "model.lora={r: 4, alpha: 8, target_modules: all-linear}"
PAINTED = (
    "model=tiny_flow", "group_size=8", "reward=colour_share", "rollout.steps=6",
    "model.adapter.channels=[16,16]",
)  # fmt: skip
PLAYED = ("data=hilo", "data.demonstrations=8", "num_minibatches=2")
EVALUATED = ("evaluation.every=1", "evaluation.prompts=4", "evaluation.samples=2")
PIPELINES = {"sd3_5_medium": 16, "flux1_dev": 16, "qwen_image": 40}  # -> tokens of a text
WRITING = ("record/", "launch/run.py", "training/callbacks/checkpoints.py")  # code writing weights
OF_PICTURES = {*OF_ERRORS, *OF_FLOWS}
PRESET_FILES = [*(ROOT / "conf" / "algorithm").glob("[!_]*.yaml")]
RESTING = {x.stem for x in PRESET_FILES if OmegaConf.load(x).get("policy_every", 1) > 1}
CUT_SMALL = {x.stem for x in PRESET_FILES if OmegaConf.load(x).get("num_minibatches", 1) > 2}
FIRST = {preset: model for model, preset, _ in reversed(ticks())}  # the first model that it trains
ALONE = {  # the only model of some presets, and its small sizes
    "tiny_masked": ("num_minibatches=2", "reward=coin", "plugins=[coin]"),
    "tiny_chain": ("num_minibatches=2", "rollout.picture.steps=6"),
}
Lines = tuple[tuple[str, ...], ...]  # successive command lines

OWN: dict[str, Lines] = {
    "tokens, LoRA, recomputed": (
        (*WORDS, "algorithm=grpo", LORA, "model.gradient_checkpointing=true"),
    ),
    "tokens, packed": (
        (*WORDS, "algorithm=dapo", "model.packing=true", "model.logit_budget=400"),
    ),
    "tokens, evaluated": ((*WORDS, "algorithm=grpo", *EVALUATED, "evaluation.pass_at=[1]"),),
    "tokens, resumed": (
        (*WORDS, "algorithm=dapo"),
        ("resume={run}", "iterations=4"),
    ),
    "tokens, hub": (
        (*WORDS, "algorithm=grpo", "model=hf", "model.path={world}/qwen3", "data=sort_letters",
         "rollout.max_new_tokens=6", "rollout.max_prompt_tokens=20"),
    ),
    "pictures, average": (
        (*PAINTED, "algorithm=nft", "model/ema=power", "evaluation.weights=ema"),
    ),
    "pictures, evaluated": ((*PAINTED, "algorithm=flow_grpo", *EVALUATED),),
    "pictures, resumed": (
        (*PAINTED, "algorithm=crd", "algorithm.ema.sampling.decay.flat=0"),
        ("resume={run}", "iterations=4"),
    ),
    "engine, weights": ((*WORDS, "algorithm=grpo", "model=hf", "rollout=vllm_server"),),
    "engine, own": (
        (*WORDS, "algorithm=grpo", "plugins=[experiments.bring_your_own.rollout_engine]",
         "rollout=copying"),
    ),
    "engine, adapter": ((*WORDS, "algorithm=grpo", "model=hf", "rollout=vllm_server", LORA),),
}  # fmt: skip
SERVED = (
    "data=sort_letters", "model.path={world}/qwen3", "rollout.max_new_tokens=6",
    "rollout.max_prompt_tokens=20", "rollout.engine.patience=5", "rollout.engine.timeout=5",
    "cache_dir={run}/cache", "algorithm.kl.coef=0",
)  # fmt: skip
PIPELINE = (
    "algorithm=flow_grpo", "~recipe", "group_size=4", "data.path={world}/prompts.txt",
    "rollout.steps=3", "model.dtype=float32", "model.adapter.resolution=32",
    "model.adapter.encoder_dtype=float32", "reward=colour_share",
)  # fmt: skip


def of_preset(name: str) -> Lines:
    """An algorithm on a suitable embedded model, with the numbers of its recipe."""
    if name in OF_PAIRS:
        return ((f"algorithm={name}", f"data={PAIRS['tiny_lm']}"),)
    if name in OF_EPISODES:
        return ((*PLAYED, f"algorithm={name}"),)
    if name == "sft":  # answers of the data
        return (("algorithm=sft",),)
    if name == "passk":  # answers that are right or wrong
        return (("group_size=8", "algorithm=passk"),)
    if (model := FIRST[name]) in ALONE:
        return ((f"model={model}", f"algorithm={name}", "group_size=8", *ALONE[model]),)
    teacher = "algorithm.teachers.folders={{others: {world}/"
    if name == "diffusion_opd":
        painted = (*PAINTED, "model.adapter.channels=[32,64]")
        return ((*painted, f"algorithm={name}", f"{teacher}tiny_flow}}}}"),)
    tuned = (ROOT / "conf" / "recipe" / "tiny_lm" / f"{name}.yaml").exists()
    tuned |= name in OF_PICTURES - CUT_SMALL
    cut = () if tuned or name in ON_FRESH_SAMPLES else ("num_minibatches=2",)
    if name in TAUGHT:
        return ((*WORDS, f"algorithm={name}", f"{teacher}tiny_lm}}}}", *cut),)
    # Of two iterations the second trains the policy; the other trains networks alone.
    own = ("algorithm.policy_every=2",) if name in RESTING else ()
    if name == "mix_grpo":  # the window of its recipe has more steps than a rollout here
        own = ("dynamics.stochastic.length=4",)
    return ((*(PAINTED if name in OF_PICTURES else WORDS), f"algorithm={name}", *cut, *own),)


def of_pipeline(model: str) -> Lines:
    sizes = (
        f"model.path={{world}}/{model}",
        f"model.adapter.max_sequence_length={PIPELINES[model]}",
    )
    return ((f"model={model}", *sizes, *PIPELINE),)


FEW_BITS = ("plugins=[coin,experiments.bring_your_own.quantization]", "model/quantization=few_bits")
SAVING: dict[str, Lines] = {  # options that save memory
    "tokens, offloaded": (
        (*WORDS, "algorithm=grpo", "algorithm.kl.coef=0.01",
         "trainer.offload=[reference,optimizer]"),
    ),
    "tokens, quantised": ((*WORDS, "algorithm=grpo", LORA, *FEW_BITS),),
    "pictures, offloaded": (
        (*of_pipeline("sd3_5_medium")[0], "model.lora=null", "algorithm.kl.coef=0.01",
         "trainer.offload=[vae,encoders,reference,optimizer]", "model.decoding=sliced",
         "cache_dir={run}/cache"),
    ),
    "pictures, quantised": (
        tuple(word for word in of_pipeline("sd3_5_medium")[0] if "plugins" not in word) + FEW_BITS,
    ),
}  # fmt: skip
RUNS: dict[str, Lines] = (
    {name: of_preset(name) for name in PRESETS}
    | OWN
    | {f"pictures, {model}": of_pipeline(model) for model in PIPELINES}
    | SAVING
)


def write_models(folder: Path) -> Path:
    """Write the models that the runs read."""
    write_world(folder)
    write_qwen3(folder / "qwen3")
    write_pipeline(folder / "sd3_5_medium", channels=16, blocks=(8, 8, 8, 8))
    write_flux(folder / "flux1_dev")
    write_qwen_image(folder / "qwen_image")
    return folder


def lines_of(name: str, world: Path, run: Path, url: str) -> list[list[str]]:
    """The command lines of a run in a folder."""
    places = {"{world}": str(world), "{run}": str(run), "{{": "{", "}}": "}"}
    first, *later = RUNS[name]
    served = (*SERVED, f"rollout.engine.url={url}") if "rollout=vllm_server" in first else ()
    written = [[*SMALL, f"run_dir={run}", *first, *served], *map(list, later)]
    return [[place(word, places) for word in line] for line in written]


def place(word: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(name, place)
    return word


def serve(names: Sequence[str], world: Path) -> AbstractContextManager[str]:
    """The address of a server, if one of the runs needs one."""
    asked = any("rollout=vllm_server" in RUNS[name][0] for name in names)
    return serving(Loopback(str(world / "qwen3"))) if asked else nullcontext("")


def on_the_device(names: Sequence[str], world: Path, runs: Path) -> dict[str, dict]:
    """The report of each run, all in one separate process, and "mixed": of two tensors."""
    with serve(names, world) as url:
        lines = {name: lines_of(name, world, runs / str(i), url) for i, name in enumerate(names)}
        path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
        child = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        said, errors = child.communicate(json.dumps(lines))
    told = [line.removeprefix("TOLD ") for line in said.splitlines() if line.startswith("TOLD ")]
    assert len(told) == 1 + len(names), f"{[*lines][len(told) - 1 :]}: {errors[-9000:]}"
    return dict(map(json.loads, told))


def by_function(counts: Mapping[str, int]) -> Counter[str]:
    """Waits or copies of steps by file and function, because line numbers move."""
    found: Counter[str] = Counter()
    for place, count in counts.items():
        if not place.startswith(WRITING):
            found[re.sub(r":\d+ ", " ", place)] += count
    return found


def here(name: str, world: Path, run: Path, trainer: str = "cpu") -> dict[str, float]:
    """The last metrics of the same command lines in this process."""
    with serve([name], world) as url:
        for overrides in lines_of(name, world, run, url):
            result = tandem.train(f"trainer={trainer}", *overrides)
    return result.metrics


INTRODUCTION = """# Where a run waits for its device

`tests/pretend_device.py` runs two iterations (four for resumed runs) of {count} configurations on a
simulated device. It refuses what a GPU refuses, and counts every read of a value by Python, which
on a GPU would empty the queue of kernels, and every copy from the host to the device: a list or a
tensor in ordinary host memory makes Python wait until it is copied. Runs are as small as possible,
so shares are more informative than sums. Loading and writing weights is not counted. `make waits`
updates this page; `tests/test_pretend_device.py` fails if a count has grown.

"""
Counts = Mapping[str, Mapping[str, int]]  # "waits" and "arrivals" -> by function
KINDS = {"waits": "waits", "arrivals": "copies to the device"}


def page(kept: Mapping[str, Counts]) -> str:
    return "\n".join(
        [
            INTRODUCTION.format(count=len(kept)),
            f"| run | {' | '.join(f'{words} | most of them in' for words in KINDS.values())} |",
            "|---|--:|---|--:|---|",
            *(row(name, counts) for name, counts in kept.items()),
            *(line for kind in KINDS for line in by_places(kept, kind)),
            "",
        ]
    )


def row(name: str, counts: Counts) -> str:
    cells = [name]
    for kind in KINDS:
        own = Counter(counts.get(kind))
        most = ", ".join(f"`{place}` {count}" for place, count in own.most_common(3))
        cells += [str(own.total()) if kind in counts else "not counted", most]
    return f"| {' | '.join(cells)} |"


def by_places(kept: Mapping[str, Counts], kind: str) -> list[str]:
    """The lines of the table of all runs."""
    total: Counter[str] = sum((Counter(x.get(kind)) for x in kept.values()), Counter())
    words = KINDS[kind]
    return [
        "",
        f"## {words.capitalize()} by function, of all runs",
        "",
        f"| function | {words} |",
        "|---|--:|",
        *(f"| `{place}` | {count} |" for place, count in total.most_common()),
    ]


def main(names: Sequence[str]) -> None:
    """Count the waits and copies of some runs, or of all, and merge them with the stored ones."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    with TemporaryDirectory() as place:
        world = Path(place) / "world"
        world.mkdir()
        told = on_the_device(names or list(RUNS), write_models(world), Path(place) / "runs")
    told.pop("mixed")  # not a run
    failed = [name for name, run in told.items() if "failed" in run]
    for name in failed:
        print(f"{name}: {told[name]['failed']}")
    kept |= {
        name: {kind: dict(sorted(by_function(run[kind]).items())) for kind in KINDS}
        for name, run in told.items()
        if name not in failed
    }
    kept = {name: kept[name] for name in RUNS if name in kept}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(page(kept), encoding="utf-8")
    print(f"wrote {PAGE}")
    sys.exit(len(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
