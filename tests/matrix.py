"""The presets, models and dynamics that can be combined: `make matrix` writes docs/matrix.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from policies.flow.tiny_sd3 import write_pipeline

from tandem.config import ConfigError, build, check, compose
from tandem.config.composition import conf_folder
from tandem.launch.assembly import assemble
from tandem.policies.flow.families.tiny_flow import TinyUNetFlow
from tandem.policies.language.tiny_lm import tiny_lm

PAGE = Path(__file__).parents[1] / "docs" / "matrix.md"
PRESETS = sorted(path.stem for path in (conf_folder() / "algorithm").glob("[!_]*.yaml"))
OF_PICTURES = ("ode", "flow_sde", "dance_sde", "cps")
MODELS = {
    "tiny_lm": ("autoregressive",),
    "tiny_masked": ("masked",),
    "tiny_flow": OF_PICTURES,
    "sd3_5_medium": OF_PICTURES,
    "tiny_chain": OF_PICTURES,
}
OF_EPISODES = ("group_in_group", "turn_to_go")
OF_PAIRS = ("dpo", "ipo", "kto", "orpo", "simpo")
PAIRS = {"tiny_lm": "sort_pairs", "tiny_masked": "sort_pairs", "tiny_flow": "shapes_pairs"}
TAUGHT = [  # with a folder that the user must name
    name
    for name in PRESETS
    if re.search("override teachers: [tv]", (conf_folder() / f"algorithm/{name}.yaml").read_text())
]
# One update per rollout.
ON_FRESH_SAMPLES = {"gpg", "opd", "opo", "otb", "reinforce", "remax", "rloo"}
YES = "✓"

INTRODUCTION = """# Compatible algorithms and models

A tick marks a composition that trains. `tests/test_matrix.py` runs two iterations, a
checkpoint, and a third iteration of the resumed run: some ticks of each model and of each
column in the quick tests, all of them in the slow ones. A number gives the reason why the
composition is refused, in the words of the error message, before any weight is trained; "it" is
the algorithm. Every preset has its published numbers and every model its default data, except
for preference algorithms (`data=sort_pairs`, `data=shapes_pairs`) and algorithms on episodes
(`data=hilo`); distillation has a teacher. Stable Diffusion is a random checkpoint of a few
thousand weights in these tests; the table applies to any folder. Dynamics for the other kind of
model are always refused. `tiny_unified`, whose parts share a transformer, has the same table as
`tiny_chain`.

`make matrix` writes this page, and a test compares it with the code.
"""


def write_world(folder: Path) -> Path:
    """Write the files of flows: weights of the tiny Stable Diffusion, prompts that name colours,
    and a teacher of each family with different weights."""
    write_pipeline(folder / "sd3")
    write_pipeline(folder / "sd3_teacher", seed=1)
    adapter = TinyUNetFlow(seed=1)
    adapter.save(adapter.load(None, None), folder / "tiny_flow")
    for part in tiny_lm(seed=1):
        part.save_pretrained(folder / "tiny_lm")
    words = [f"{colour} {thing}" for colour in ("red", "green", "blue") for thing in "abcdefgh"]
    (folder / "prompts.txt").write_text("\n".join(words))
    return folder


def choose(model: str, preset: str, dynamics: str, world: Path) -> list[str]:
    """The command line of a cell."""
    own = [f"model={model}", f"algorithm={preset}", f"dynamics={dynamics}", "~recipe"]
    if preset in TAUGHT:
        teacher = {"sd3_5_medium": "sd3_teacher"}.get(model, model)
        own.append(f"algorithm.teachers.folders={{others: {world / teacher}}}")
    if model == "sd3_5_medium":
        sizes = ("resolution=16", "max_sequence_length=16")
        return [
            *own,
            f"model.path={world / 'sd3'}",
            f"data.path={world / 'prompts.txt'}",
            *(f"model.adapter.{size}" for size in sizes),
            "model.latent_size=256",
        ]
    if preset in OF_EPISODES and model == "tiny_lm":
        return [*own, "data=hilo"]
    return [*own, f"data={PAIRS[model]}"] if preset in OF_PAIRS and model in PAIRS else own


def refusal(model: str, preset: str, dynamics: str, world: Path) -> str | None:
    """The refusal of a cell's command line; None: it trains."""
    try:
        cfg = compose([*choose(model, preset, dynamics, world), "warm_start=null"])
        settings = check(cfg)
        if "demonstrations" in build(cfg.algorithm).needs:  # only rows show their fields
            assemble(cfg, settings, build(cfg.data), world, None)
    except ConfigError as error:
        return str(error)
    return None


def shorten(said: str, preset: str, dynamics: str) -> str:
    """The reason without what the row and the column already state."""
    place = f" on (rows of data under )?dynamics={dynamics}(?=:)"
    return re.sub(place, "", said).replace(f"algorithm={preset} ", "it ")


def section(model: str, world: Path) -> str:
    """The section of the page about one model."""
    reasons: list[str] = []
    rows = []
    for preset in PRESETS:
        cells = [cell(model, preset, dynamics, world, reasons) for dynamics in MODELS[model]]
        rows.append(f"| {preset} | {' | '.join(cells)} |")
    head = [f"| algorithm | {' | '.join(MODELS[model])} |", f"|---|{':-:|' * len(MODELS[model])}"]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([f"## {model}", "", *head, *rows, "", *notes, ""])


def answer(model: str, preset: str, dynamics: str, world: Path) -> str:
    """A tick, or the reason why not."""
    said = refusal(model, preset, dynamics, world)
    return YES if said is None else shorten(said, preset, dynamics)


def cell(model: str, preset: str, dynamics: str, world: Path, reasons: list[str]) -> str:
    """A tick, or the number of the reason."""
    if (reason := answer(model, preset, dynamics, world)) == YES:
        return YES
    if reason not in reasons:
        reasons.append(reason)
    return str(reasons.index(reason) + 1)


def page(world: Path) -> str:
    return "\n".join([INTRODUCTION, *(section(model, world) for model in MODELS)])


def read_sections() -> dict[str, str]:
    """model -> its current section of the page."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def answers() -> Iterator[tuple[tuple[str, str, str], str]]:
    """(model, preset, dynamics) of every cell of the page, and its tick or reason."""
    for model, text in read_sections().items():
        reasons = dict(re.findall(r"^(\d+)\. (.*)", text, flags=re.M))
        for line in re.findall(r"^\| (\w+ \|.*) \|$", text, flags=re.M)[1:]:
            preset, *cells = line.split(" | ")
            for dynamics, said in zip(MODELS[model], cells, strict=True):
                yield (model, preset, dynamics), reasons.get(said, said)


def ticks() -> list[tuple[str, str, str]]:
    """(model, preset, dynamics) of every cell that trains according to the page."""
    return [cell for cell, said in answers() if said == YES]


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        PAGE.write_text(page(write_world(Path(folder))), encoding="utf-8")
    print(f"wrote {PAGE}")
