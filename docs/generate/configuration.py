"""The configuration reference: every group, option and key, from conf/ and signatures."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from generate.repository import ROOT
from generate.signatures import REQUIRED, Parameter, docstring, parameters

from tandem.registry.declared import options as registered
from tandem.registry.nodes import PLACED_IN

CONF = ROOT / "conf"
SETTINGS = "tandem.settings.settings.Settings"
HEAD = "| key | default | meaning |\n|---|---|---|"
COMMENT = re.compile(r"^(\s*)([\w]+):.*?\s#\s(.*)$")
LONGEST = 120  # characters of a default: questions to a judge are longer
FOLDED = ("recipe",)  # groups of many files that hold numbers alone


@dataclass(frozen=True, slots=True)
class Option:
    group: str
    name: str
    says: str
    node: Mapping[str, object]
    text: str | None = None  # of its file; None: it is made of a signature
    comments: Mapping[str, str] | None = None


def pages() -> dict[str, str]:
    """uri -> Markdown: the keys of the top level, and a page for each group of conf/."""
    groups = by_group()
    tops = sorted(set(map(_top, groups)))
    found = {"configuration/index.md": index(groups, tops)}
    for top in tops:
        own = {name: rows for name, rows in groups.items() if _top(name) == top}
        found[f"configuration/{top}.md"] = page(top, own)
    return found


def by_group() -> dict[str, list[Option]]:
    """group -> its options: those of files, and those that functions register."""
    found: dict[tuple[str, str], Option] = {}
    for (group, name), option in registered().items():
        node = option.node if isinstance(option.node, Mapping) else {}
        found[group, name] = Option(group, name, option.help, node)
    for path in sorted(CONF.rglob("*.yaml")):
        group = path.parent.relative_to(CONF).as_posix()
        if path.parent != CONF and not path.stem.startswith("_") and "/_" not in f"/{group}":
            found[group, path.stem] = of_file(group, path)
    grouped: dict[str, list[Option]] = {}
    for (group, _), option in sorted(found.items()):
        grouped.setdefault(group, []).append(option)
    return grouped


def of_file(group: str, path: Path) -> Option:
    text = path.read_text(encoding="utf-8")
    lines = [x for x in text.splitlines() if not x.startswith("# @package")]
    says = lines[0].lstrip("# ") if lines and lines[0].startswith("#") else ""
    node = yaml.load(text, Loader=yaml.BaseLoader) or {}  # numbers as they are written
    return Option(group, path.stem, says, node, text, key_comments(text))


def key_comments(text: str) -> dict[str, str]:
    """Dotted key -> the comment behind it."""
    found, above = {}, []
    for line in text.splitlines():
        key = re.match(r"^(\s*)(\w+):", line)
        if key is None:
            continue
        depth = len(key[1]) // 2
        above = [*above[:depth], key[2]]
        if said := COMMENT.match(line):
            found[".".join(above)] = said[3]
    return found


def index(groups: Mapping[str, Sequence[Option]], tops: Sequence[str]) -> str:
    numbers = {
        top: sum(len(rows) for name, rows in groups.items() if _top(name) == top) for top in tops
    }
    lines = "\n".join(f"| [`{top}`]({top}.md) | {number} |" for top, number in numbers.items())
    top_level = of_file("", CONF / "config.yaml")
    shown = {k: v for k, v in top_level.node.items() if k not in ("defaults", "hydra")}
    rows = "\n".join(table_rows("", shown, top_level.comments, SETTINGS))
    return (
        "# Configuration\n\nGenerated from `conf/` and the signatures of the registered parts.\n\n"
        "`group=option` chooses an option, `key=value` sets a key. `python train.py --help` lists "
        "the same in the terminal, including the parts of your plugins. A key with the default "
        f"*{REQUIRED}* must be given.\n\n## Groups\n\n| group | options |\n|---|--:|\n{lines}\n\n"
        f"## Top-level keys\n\n{HEAD}\n{rows}\n"
    )


def _top(group: str) -> str:
    return group.partition("/")[0]


def page(top: str, groups: Mapping[str, Sequence[Option]]) -> str:
    if top in FOLDED:
        return fold(top, groups)
    parts = [introduction(top, groups)]
    for group, rows in groups.items():
        if group != top:
            parts.append(f"## {group}\n")
        parts += [section(option) for option in rows]
    return "\n".join(parts)


def introduction(top: str, groups: Mapping[str, Sequence[Option]]) -> str:
    shown = top if top in groups else next(iter(groups))
    return (
        f"# {top}\n\nThe options of the group `{top}` and of the groups below it, with their keys, "
        f"defaults and meanings. In the terminal:\n\n    python train.py --help {shown}\n"
    )


def fold(top: str, groups: Mapping[str, Sequence[Option]]) -> str:
    """Files that hold numbers alone: shown as they are."""
    parts = [introduction(top, groups)]
    for group, rows in groups.items():
        parts.append(f"## {group}\n")
        for one in rows:
            text = (one.text or "").rstrip().replace("\n", "\n    ")
            parts.append(
                f'??? note "{one.name}: {_plain(one.says)}"\n    ```yaml\n    {text}\n    ```\n'
            )
    return "\n".join(parts)


def section(option: Option) -> str:
    """One option: what it is, its keys, its file."""
    prefix = prefix_of(option)
    target = option.node.get("_target_", "")
    depth = "##" if "/" not in option.group else "###"
    lines = [f"{depth} {option.group}={option.name}\n"]
    says = option.says or docstring(str(target))
    if says:
        lines.append(f"{_plain(says)}\n")
    rows = list(table_rows(prefix, option.node, option.comments or {}, None))
    if rows:
        lines.append("\n".join([HEAD, *rows, ""]))
    if option.group == "algorithm" and option.text is not None:
        lines.append(f"[Its page](../algorithms/{option.name}.md)\n")
    return "\n".join(lines)


def prefix_of(option: Option) -> str:
    """Where its keys stand in a configuration."""
    place = PLACED_IN.get(option.group, option.group.replace("/", "."))
    if option.text is not None and "@package _global_" in option.text:
        return ""
    return "" if place == "_global_" else f"{place}."


def table_rows(
    prefix: str, node: Mapping[str, object], comments: Mapping[str, str], record: str | None
) -> Iterator[str]:
    """The keys of a node with what its target says of them; nodes below it come after them."""
    target = record or str(node.get("_target_", ""))
    taken = dict(parameters(target))
    names = [k for k in node if k not in ("_target_", "_partial_", "defaults")]
    for name in [*names, *(k for k in taken if k not in names and _is_key(taken[k]))]:
        value, one = node.get(name), taken.get(name, Parameter(name, default=""))
        below = {k.partition(".")[2]: v for k, v in comments.items() if k.startswith(f"{name}.")}
        if isinstance(value, Mapping) and value:
            if "_target_" in value and one.type:
                yield _row(f"{prefix}{name}", one, _target_name(value), comments.get(name, ""))
            yield from table_rows(f"{prefix}{name}.", value, below, _record_of(one))
        else:
            yield _row(f"{prefix}{name}", one, value, comments.get(name, ""))


def _record_of(one: Parameter) -> str | None:
    """The settings record that a key of the top level is, such as Guards."""
    homes = {
        "Guards": "tandem.settings.guards.Guards",
        "Checkpoints": "tandem.settings.settings.Checkpoints",
    }
    return homes.get(one.type)


def _is_key(one: Parameter) -> bool:
    """Of what is not in the file: numbers and choices, not parts that only code can build."""
    return not any(word in one.type for word in ("Callable", "Tensor", "nn.Module")) and (
        one.default != REQUIRED
    )


def _target_name(value: Mapping[str, object]) -> str:
    return str(value["_target_"]).rpartition(".")[2]


def _row(key: str, one: Parameter, value: object, comment: str) -> str:
    default = one.default if value is None else _show_value(value)
    kind = ", ".join(filter(None, (_code(one.type), _plain(one.bound))))
    meaning = _plain(comment or one.meaning)
    said = " &middot; ".join(
        filter(None, (meaning, f'<span class="kind">{kind}</span>' if kind else ""))
    )
    return f"| {_key(key)} | {_code(default)} | {said} |"


def _key(key: str) -> str:
    """It may be broken behind a dot or an underscore, and nowhere else."""
    broken = re.sub(r"([._])", r"\1<wbr>", key)
    return f"<code>{broken}</code>"


def _show_value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, Mapping):
        return "{}" if not value else "{…}"
    return {"None": "null", "???": REQUIRED, "": "null"}.get(str(value), str(value))


def _code(text: str) -> str:
    if not text:
        return ""
    if text in (REQUIRED, "…"):
        return f"*{text}*"
    plain = html.escape(textwrap.shorten(text, LONGEST, placeholder=" …"), quote=False)
    return f"<code>{plain.replace('|', '&#124;').replace('$', '&#36;')}</code>"  # no formula


def _plain(text: str) -> str:
    """Without what a table or Markdown would read as its own."""
    return text.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")
