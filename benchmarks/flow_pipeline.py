"""An iteration of images beside Flow-Factory's, on one tiny SD3 pipeline that is written here.

Each is a process with one thread, and they take turns. Flow-Factory is in no package index: the
command line names a checkout and a Python interpreter with its dependencies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from freshness import ROOT, commit_here
from turns import Lap, Runner

AIM = 0.5  # Tandem's CPU seconds over those of Flow-Factory
KEPT = ROOT / "benchmarks" / "results" / "flow_factory.json"
ROUNDS, WARM_UP = 10, 2  # counted turns, and uncounted ones before them
GUIDANCE = {"none": 1.0, "4.5": 4.5}
SAYS = (
    "16 pictures of 64 x 64 of 4 prompts in 6 steps, two random ones, two updates, float32, by a "
    "transformer of 27 k parameters that reads 333 tokens of text and 16 of a picture"
)
PROMPTS = ("red circle", "blue square", "two dogs", "grey sky", "a tower", "a boat", "rain", "sun")
PARTS: dict[str, Callable[[Lap], float]] = {
    "iteration": lambda lap: lap.cpu,
    "sampling": lambda lap: lap.sampling,
    "training": lambda lap: lap.cpu - lap.sampling,  # with rewards, advantages and the log
}

Laps = Mapping[str, Sequence[Lap]]
Report = dict[str, object]


def sections(checkout: Path | None, python: Path, *, rounds: int | None, save: bool) -> list[str]:
    """The report of this measurement; without a checkout the saved one, if any."""
    if checkout is None:
        print("no --flow-factory DIR is given: its comparison is left out, or stays as saved")
        found = json.loads(KEPT.read_text()) if KEPT.exists() else []
    else:
        found = compare(checkout, python, rounds=rounds or ROUNDS)
    if save and found:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    return [as_text(found)] if found else []


def compare(checkout: Path, python: Path, *, rounds: int) -> list[Report]:
    """Both programs without and with guidance."""
    measured, found = commit_here(), []  # before others move it
    for name, scale in GUIDANCE.items():
        with tempfile.TemporaryDirectory() as folder:
            laps = take_turns(Path(folder), checkout, python, scale, rounds=rounds)
        found.append(report(laps, measured) | {"guidance": name, "flow_factory": head_of(checkout)})
    return found


def take_turns(
    folder: Path, checkout: Path, python: Path, scale: float, *, rounds: int
) -> dict[str, list[Lap]]:
    """Tandem goes first in every round and starts first: it writes the numbers that both read."""
    import step_pictures  # it imports heavy packages

    prepare(folder)
    options = overrides(folder, guidance=scale, iterations=rounds + WARM_UP)
    runners: dict[str, Runner] = {}
    try:
        runners["tandem"] = Runner(step_pictures.steps, folder, options)
        runners["flow_factory"] = Runner(flow_factory, folder, checkout, python)
        for _ in range(rounds + WARM_UP):
            for runner in runners.values():
                runner.turn()
    finally:
        for runner in runners.values():
            runner.close()
    return {name: runner.laps[WARM_UP:] for name, runner in runners.items()}


def flow_factory(connection: Connection, folder: Path, checkout: Path, python: Path) -> None:
    """Replace this process by one of the other interpreter."""
    script = Path(__file__).with_name("step_flow_factory.py")
    os.set_inheritable(connection.fileno(), True)
    found_by = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [str(python), str(script), str(folder), str(connection.fileno())]
    os.execve(python, command, found_by)


def prepare(folder: Path) -> None:
    """The pipeline of the tests, with a VAE of four blocks as in Stable Diffusion 3."""
    sys.path.append(str(ROOT / "tests"))
    from policies.flow.tiny_sd3 import write_pipeline

    write_pipeline(folder / "pipeline", channels=16, blocks=(8,) * 4)
    (folder / "prompts").mkdir()
    (folder / "prompts" / "train.txt").write_text("\n".join(PROMPTS) + "\n")


def overrides(folder: Path, *, guidance: float, iterations: int) -> tuple[str, ...]:
    return (
        "model=sd3_5_medium", f"model.path={folder}/pipeline", "model.dtype=float32",
        "model.lora=null", "model.adapter.resolution=64", "model.adapter.encoder_dtype=float32",
        "model.row_budget=16", "rollout.max_rows=16", "rollout.storage=float32", "rollout.steps=6",
        f"rollout.guidance_scale={guidance}", "dynamics/schedule=linear_shift",
        "dynamics/stochastic=random_steps", "dynamics.stochastic.num_sde_steps=2", "data=text",
        f"data.path={folder}/prompts/train.txt", "plugins=[picture_reward]", "reward=brightness",
        "algorithm=flow_grpo", "algorithm.kl.coef=0", "optimizer.lr=1e-5", "prompts_per_step=4",
        "group_size=4", "num_minibatches=2", "evaluation.every=null", "checkpoints.every=1000",
        "trainer=cpu", "threads=1", f"iterations={iterations}", f"run_dir={folder}/run",
        f"cache_dir={folder}/cache",
    )  # fmt: skip


def report(laps: Laps, measured: str) -> Report:
    rounds = list(zip(laps["tandem"], laps["flow_factory"], strict=True))
    return {
        "rounds": len(rounds),
        "commit": measured,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "rows": same_rows(laps),
        "cpu_s": {
            part: {side: median(map(read, own)) for side, own in laps.items()}
            for part, read in PARTS.items()
        },
        "ratio": {
            part: median(read(ours) / read(theirs) for ours, theirs in rounds)
            for part, read in PARTS.items()
        },
    }


def same_rows(laps: Laps) -> dict[str, dict[str, int]]:
    """The rows that the networks compute in an iteration. Raises SystemExit if the two sides or two
    iterations differ."""
    rows = {side: own[0].rows for side, own in laps.items()}
    if any(lap.rows != rows[side] for side, own in laps.items() for lap in own):
        raise SystemExit("an iteration computed other rows than the first one")
    asked = [{k: n for k, n in own.items() if not k.startswith("passes")} for own in rows.values()]
    if asked[0] != asked[1]:
        raise SystemExit(f"the two sides computed different rows: {rows}")
    return rows


def head_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h, %cs"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def as_text(found: Sequence[Report]) -> str:
    head = "| guidance | rounds | CPU s per iteration: Tandem, Flow-Factory, ratio | sampling | "
    head += "training | passes of the transformer without and with gradient: Tandem, Flow-Factory |"
    one = found[0]
    return (
        f"### A whole iteration beside Flow-Factory: {SAYS}\n\n{head}\n|---|---|---|---|---|---|\n"
        f"{''.join(map(row, found))}\nCommit {one['commit']}, {one['date']}; Flow-Factory "
        f"{one['flow_factory']}; one thread; aim at most {AIM:.2f} of its CPU time.\n"
    )


def row(report: Report) -> str:
    def three(part: str) -> str:
        seconds = report["cpu_s"][part]
        both = f"{seconds['tandem']:.3f}, {seconds['flow_factory']:.3f}"
        return f"{both}, **{report['ratio'][part]:.2f}**"

    kinds = ("passes without gradient", "passes with gradient")
    passes = ", ".join(" + ".join(str(own[k]) for k in kinds) for own in report["rows"].values())
    cells = (report["guidance"], str(report["rounds"]), *map(three, PARTS), passes)
    return f"| {' | '.join(cells)} |\n"
