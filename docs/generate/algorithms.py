"""One page per preset of conf/algorithm: from its YAML, what its functions declare, and curves."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import yaml
from generate import curves, tables
from generate.repository import ROOT
from omegaconf import DictConfig, OmegaConf

from tandem.config import build, compose
from tandem.contracts import facts_of, iterate_innermost, name_of, unwrap_partial
from tandem.settings.renamed import OF_THE_RUN

CONF = ROOT / "conf" / "algorithm"
TABLE = ROOT / "docs" / "algorithms.md"
FORMULAS = yaml.safe_load((ROOT / "docs" / "formulas.yaml").read_text(encoding="utf-8"))
USED: set[tuple[str, str]] = set()  # formulas that a page shows
PAIRS = ("data=sort_pairs",)
TEACHER = "algorithm.teachers.folders={others: RUN}"
NUMBERS = ("target_kl", "normalize_advantages")
TITLES = {"loss": "Loss", "advantage": "Advantage", "weights": "Weights", "kl": "KL in the loss"}
PARTS = ("loss", "advantage", "weights", "kl", "entropy", "critic")


def presets() -> list[str]:
    return sorted(path.stem for path in CONF.glob("[!_]*.yaml"))


@functools.cache
def rows() -> dict[str, list[str]]:
    """preset -> type, needs, best for, paper: its row of docs/algorithms.md."""
    found = re.findall(r"^\| `(\w+)` \| (.*) \|$", TABLE.read_text(encoding="utf-8"), re.M)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in found}


def link_presets(markdown: str) -> str:
    """The table of docs/algorithms.md with each preset led to its page, in place of its file."""
    names = "|".join(presets())
    led = re.sub(rf"^\| `({names})` \|", r"| [`\1`](algorithms/\1.md) |", markdown, flags=re.M)
    led = re.sub(r" \| \[file\]\([^)]*\) \|$", " |", led, flags=re.M)
    return led.replace("| paper | |\n|---|---|---|---|---|---|", "| paper |\n|---|---|---|---|---|")


def command(preset: str) -> list[str]:
    """The shortest command line that trains with a preset."""
    kind, needs, *_ = rows()[preset]
    words = [f"algorithm={preset}"]
    if "flows" in kind:
        words = ["model=tiny_flow", *words]
    if "masked" in kind:
        words = ["model=tiny_masked", *words]
    if "pairs" in needs:
        words += PAIRS
    return [*words, f'"{TEACHER}"'] if "teachers" in needs else words


def pages() -> dict[str, str]:
    """uri -> Markdown of every preset."""
    made = {f"algorithms/{preset}.md": page(preset) for preset in presets()}
    refuse_left_over(USED, groups=["loss", "advantage", "weights"])
    return made


def refuse_left_over(used: Set[tuple[str, str]], groups: Iterable[str]) -> None:
    """A formula that no page shows is one that nobody would keep right."""
    known = {(group, name) for group in groups for name in FORMULAS[group]}
    if left := sorted(known - used):
        raise ValueError(f"formulas that no preset uses: {', '.join(map(' '.join, left))}")


def page(preset: str) -> str:
    text = (CONF / f"{preset}.yaml").read_text(encoding="utf-8")
    title, paper, said = heading(text)
    words = [word.strip('"') for word in command(preset)]
    run = compose([*words, "~recipe", "warm_start=null"])
    cfg, algorithm = run.algorithm, build(run.algorithm)
    best_for = rows()[preset][2]
    parts = {
        "": f"# {preset}\n\n**{title}.** {paper}\n\nBest for: {best_for}.\n",
        "Run it": f"    python train.py {' '.join(command(preset))}\n",
        "Formula": formulas(cfg, algorithm),
        "Numbers": f"{said}\n\n{numbers(run)}",
        "Requirements": needs(preset, algorithm),
        "Learning curve": curves.section(preset),
        "YAML": f"`conf/algorithm/{preset}.yaml`\n\n```yaml\n{text}```\n",
    }
    return "\n".join(f"## {name}\n\n{body}" if name else body for name, body in parts.items())


def heading(text: str) -> tuple[str, str, str]:
    """Title, link to the paper, and what is published: the comment that opens a preset."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    title, _, number = lines[0].partition(", arXiv:")
    paper = f"[arXiv:{number}](https://arxiv.org/abs/{number})" if number else ""
    return title, paper, " ".join(lines[1:])


def formulas(cfg: DictConfig, algorithm: object) -> str:
    """The formula of each part, with what its docstring says."""
    shown = {"loss": algorithm.loss, "advantage": algorithm.advantage, "weights": algorithm.weights}
    if cfg.kl.coef:
        shown["kl"] = algorithm.kl.loss if "loss" in cfg.kl else None
    return "\n".join(
        _formula(group, component) for group, component in shown.items() if component is not None
    )


def _formula(group: str, component: Callable) -> str:
    _, inner = next(iterate_innermost(component, ""))
    name = name_of(inner)
    latex = FORMULAS[group].get(name)
    if latex is None:
        raise ValueError(f"{group} {name} has no formula in docs/formulas.yaml")
    USED.add((group, name))
    owner = unwrap_partial(inner)[0]
    said = inspect.cleandoc(owner.__doc__ or type(owner).__doc__ or "").partition("\n\n")[0]
    lines = [f"**{TITLES[group]}** `{name}`: {' '.join(said.split())}"]
    return "\n\n".join([*lines, f"$$\n{latex}\n$$", ""])


def numbers(run: DictConfig) -> str:
    """What the preset sets, without a recipe, with the default of the model it was composed for."""
    cfg = run.algorithm
    found = [(name, run[name]) for name in OF_THE_RUN]
    found += [(f"algorithm.{name}", cfg[name]) for name in NUMBERS if cfg.get(name) is not None]
    for part in PARTS:
        node = cfg.get(part)
        if isinstance(node, DictConfig) and not (part in ("kl", "entropy") and not node.coef):
            found += [(f"algorithm.{part}.{key}", value) for key, value in _leaves(node)]
    lines = "\n".join(f"| `{key}` | {_text_of(value)} |" for key, value in found)
    return f"| key | value |\n|---|---|\n{lines}\n"


def _leaves(node: DictConfig, above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in OmegaConf.to_container(node, resolve=True).items():
        yield from _leaf(f"{above}{key}", value)


def _leaf(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaf(f"{key}.{name}", inner)
    elif key.endswith("_target_"):
        if "." in key:
            yield key.removesuffix("._target_"), str(value).rpartition(".")[2]
    elif not key.endswith("_partial_"):
        yield key, value


def _text_of(value: object) -> str:
    if value is None:
        return "off"
    return f"`{value:.4g}`" if isinstance(value, float) else f"`{str(value).lower()}`"


def needs(preset: str, algorithm: object) -> str:
    """The fields that are read, groups, a reference or critic, and where the preset is refused."""
    kind, wants, *_ = rows()[preset]
    facts = [facts_of(part) for part in (algorithm.loss, algorithm.advantage)]
    groups = any(one.compares == "group" for one in facts)
    lines = [
        f"* Kind: {kind}{'; needs: ' + wants if wants else ''}.",
        "* It compares the samples of a group, so `group_size` is at least 2."
        if groups
        else "* It does not compare the samples of a group.",
        f"* It trains {_where(preset)}.",
    ]
    read = [f"| `{name}` | {_meaning(name)} |" for name in sorted(algorithm.needs)]
    return "\n".join([*lines, "", "| field that it reads | |", "|---|---|", *read, ""])


def _meaning(field: str) -> str:
    return tables.meanings().get(field, "rows of the data").replace("|", r"\|")


@functools.cache
def _matrix() -> dict[str, dict[str, list[str]]]:
    """preset -> model -> the dynamics under which it trains: docs/matrix.md."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        model, _, text = section.partition("\n")
        table = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
        _, *dynamics = table[0]
        for preset, *cells in table[2:]:
            kept = [name for name, cell in zip(dynamics, cells, strict=True) if cell == "✓"]
            found.setdefault(preset, {})[model] = kept
    return found


def _where(preset: str) -> str:
    by_model = _matrix()[preset]
    texts = {"tiny_lm": "tokens", "tiny_masked": "masked-diffusion text"}
    trained = [name for model, name in texts.items() if by_model[model]]
    flows = [f"`{name}`" for name in by_model["tiny_flow"]]
    said = trained + ([f"flow models with {', '.join(flows)}"] if flows else [])
    return f"{', '.join([*said[:-2], ' and '.join(said[-2:])])} ([why not elsewhere](../matrix.md))"
