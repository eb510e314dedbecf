"""Pages of `python train.py --help`, generated from conf/: the short one and the full one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tandem.config.registered import list_own_options
from tandem.registry.declared import options
from tandem.registry.nodes import groups_offering

# An entry of a defaults list placed under another name: group@place: option.
PLACED = re.compile(r"^  - (\w[\w/]*)@(\w[\w.]*): \w+", re.M)

EXAMPLES = """\
  python train.py
  python train.py algorithm=dapo seed=1 iterations=200
  python train.py model=hf model.path=Qwen/Qwen3-0.6B data=jsonl data.path=prompts.jsonl
  python train.py -m algorithm=grpo,dapo,rloo sweep=[seeds]
  python train.py resume=runs/2026-01-31/12-00-00-tiny_lm-grpo-seed0-4711"""

ESTIMATE = """\
Print the memory that a run takes on each device: tandem estimate [group=option] [key=value] ...

The groups and keys are those of `tandem train`: tandem train --help, and --help GROUP or KEY here.
Nothing is trained and no weight is loaded; of a model on the hub only its config.json is read.

Examples:
  tandem estimate
  tandem estimate model=hf model.path=Qwen/Qwen3-0.6B rollout.max_new_tokens=2048
  tandem estimate model=qwen3_14b model/quantization=bnb_4bit
  tandem estimate model=sd3_5_medium algorithm=flow_grpo trainer=fsdp2 trainer.devices=8

It lists weights, gradients, optimiser state, caches and activations, then what is held in each
phase; the largest phase is the peak, and the last line names a key that lowers it. Libraries
and fragmentation of the device take more than is listed.

Keys that lower it, each with its cost in docs/memory.md:
  model.lora={r:32,alpha:64}         no gradients and optimiser state of the base
  model/quantization=bnb_4bit        a smaller frozen base below lora
  model.gradient_checkpointing=true  fewer activations, one more forward pass
  max_tokens_per_microbatch=8192     smaller passes; of image models: model.row_budget=64
  trainer.offload=[optimizer]        state in host memory between uses
  trainer=fsdp2 trainer.devices=8    a share of the weights on each device
"""

Described = Mapping[str, Mapping[str, str]]  # group -> option -> its description

WIDTH = 100
MORE = """\
  --help GROUP         its options, and its keys: --help algorithm.loss, --help guards
  --help KEY           meaning, type, bound, default, who set and reads it: --help optimizer.lr
  --help all           every option and every key; plugins=[...] beside any of these adds its own
  --cfg job --resolve  the configuration that a command line makes"""

SHORT_NOTES = """\
  group=option chooses (algorithm=dapo, algorithm/loss=ppo, logger=[wandb,csv]), key=value sets
  (algorithm.loss.clip_high=0.28), ~recipe leaves the tuned numbers out; the command line wins.
  -m or sweep= runs a sweep. dry_run=true checks everything and loads nothing, estimate=true prints
  the memory that the run takes. resume=RUN continues an interrupted run."""

NOTES = """\
  group=option chooses (algorithm=dapo, algorithm/loss=ppo, logger=[wandb,csv], ~recipe); a group
  placed under another name is written with it, as below (group@name=option);
  a loss without a preset is also an algorithm: algorithm=opsm is group-relative with that loss;
  key=value sets a number (algorithm.loss.clip_high=0.28). The command line wins, then the recipe
  of model and algorithm, then the algorithm; a preset without one takes the shared recipe of the
  model, below its own numbers (docs/howto/algorithm.md).
  --cfg job --resolve prints the configuration; other arguments of a function keep their defaults
  and are keys as well (reward.exact_match.range=[0,1]). -m or sweep= runs a sweep
  (docs/sweeps.md), dry_run=true stops before any weight is loaded."""


def page(conf: Path, plugins: Described) -> str:
    """Five examples, one line per group and further help: at most 40 lines."""
    parts = {
        "Examples": EXAMPLES,
        "How to write it": SHORT_NOTES,
        "Groups (the default; how many there are)": "\n".join(_lines_of_groups(conf, plugins)),
        "More": MORE,
    }
    return _join_sections(parts)


def _lines_of_groups(conf: Path, plugins: Described) -> Iterator[str]:
    defaults = _defaults(conf)
    for group, described in sorted(groups_of(conf, plugins).items()):
        if "/" in group or group == "hydra":
            continue
        chosen, own = defaults.get(group, "-"), sorted(plugins.get(group, ()))
        others = ", ".join(
            [*own, *(name for name in sorted(described) if name not in {chosen, *own})]
        )
        row = f"  {group + '=' + chosen:<28} {len(described):>3}  {others}"
        yield row if len(row) <= WIDTH else f"{row[: WIDTH - 5].rpartition(',')[0]}, ..."


def _defaults(conf: Path) -> dict[str, str]:
    """group -> its default in config.yaml."""
    return dict(re.findall(r"^  - (\w+): (\w+)", (conf / "config.yaml").read_text(), re.M))


def groups_of(conf: Path, plugins: Described) -> dict[str, dict[str, str]]:
    """group -> its options with their descriptions, including those of plugins."""
    found = _options(conf)
    for group, described in plugins.items():
        found.setdefault(group, {}).update(described)
    return found


def _join_sections(parts: Mapping[str, str]) -> str:
    body = "\n\n".join(f"{title}:\n{text}" for title, text in parts.items())
    return f"Train a policy: python train.py [group=option] [key=value] ...\n\n{body}\n"


def everything(conf: Path, plugins: Described) -> str:
    """Five examples, all groups with their options, and the top-level keys."""
    brought = [line for group in sorted(plugins) for line in _list_options(group, plugins[group])]
    parts = {
        "Examples": EXAMPLES,
        "How to write it": NOTES,
        **({"Of plugins": "\n".join(brought)} if brought else {}),
        "Groups (* is the default)": "\n".join(_groups(conf)),
        "Keys": "\n".join(_keys(conf / "config.yaml")),
    }
    return _join_sections(parts)


def _groups(conf: Path) -> Iterator[str]:
    defaults = _defaults(conf)
    elsewhere = places(conf)
    for group, described in sorted(_options(conf).items()):
        yield from (f"  {spelling}" for spelling in elsewhere.get(group, [group]))
        for name, text in sorted(described.items()):
            mark = "*" if defaults.get(group) == name else " "
            yield f"   {mark}{name:<22} {text}".rstrip()


def _options(conf: Path) -> dict[str, dict[str, str]]:
    """group -> its options with their descriptions, from functions and from files."""
    found: dict[str, dict[str, str]] = {}
    for (group, name), option in options().items():
        found.setdefault(group, {})[name] = option.help
    for path in conf.rglob("*.yaml"):
        group = path.parent.relative_to(conf)
        if path.parent != conf and not path.stem.startswith("_") and group.name[0] != "_":
            found.setdefault(group.as_posix(), {})[path.stem] = description(path)
    return found


def _list_options(group: str, options: Mapping[str, str]) -> Iterator[str]:
    yield f"  {group}"
    yield from (f"    {name:<22} {options[name]}".rstrip() for name in sorted(options))


def list_plugin_options(folders: Sequence[Path]) -> dict[str, dict[str, str]]:
    """The options that plugins register, and those in their `conf` folders."""
    found: dict[str, dict[str, str]] = {}
    for (group, name), component in list_own_options().items():
        said = (component.__doc__ or "").partition("\n")[0]
        for place in groups_offering(group):
            found.setdefault(place, {})[name] = said
    for folder in folders:
        for path in sorted(folder.rglob("[!_]*.yaml")):
            group = path.parent.relative_to(folder).as_posix()
            if not (group.startswith("_") or "/_" in group):
                found.setdefault(group, {})[path.stem] = description(path)
    return found


def places(conf: Path) -> dict[str, list[str]]:
    """group -> how to write it, for groups placed under another name.

    If only some options create such a place, it lists them.
    """
    makers: dict[str, dict[str, list[str]]] = {}
    for path in sorted(conf.rglob("*.yaml")):
        folder, text = path.parent.relative_to(conf), path.read_text()
        around = () if "@package _global_" in text else folder.parts
        for name, place in PLACED.findall(text):
            group, key = (folder / name).as_posix(), ".".join([*around, place])
            if key != group.replace("/", "."):
                spellings = makers.setdefault(group, {})
                spellings.setdefault(f"{group}@{key}", []).append(
                    f"{folder.as_posix()}={path.stem}"
                )
    return {
        group: [_with(*found) for found in sorted(spellings.items())]
        for group, spellings in makers.items()
    }


def _with(spelling: str, options: Sequence[str]) -> str:
    group, names = options[0].partition("=")[0], [option.partition("=")[2] for option in options]
    always = any(name.startswith("_") for name in names)
    return spelling if always else f"{spelling} (of {group}={'|'.join(names)})"


def description(path: Path) -> str:
    """The comment at the start of a YAML file, if any."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("# @package"))
    first = next(lines, "")
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _keys(config: Path) -> Iterator[str]:
    """The keys of config.yaml with their comments, without the defaults and Hydra's own."""
    blocks = re.split(r"^(?=\w)", config.read_text(), flags=re.M)
    for block in blocks[1:]:
        if not block.startswith(("defaults:", "hydra:")):
            yield from (f"  {line}" for line in block.splitlines() if line and "{}" not in line)
