"""Built-in targets that a configuration may name: those that the shipped options name."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tandem.config.plain import iterate_leaves
from tandem.registry import declared

NAMED = re.compile(r"\b_target_:\s*['\"]?(tandem(?:\.\w+)+)")
PACKAGE = Path(__file__).parents[1]
FOREIGN = ("experiment", "recipe")  # folders of conf/ for files that may be untrusted


def conf_folder() -> Path:
    """`conf/` of the checkout, or of an installed package. `train.py` lies beside it."""
    inside = PACKAGE / "installed" / "conf"
    return inside if inside.is_dir() else PACKAGE.parents[1] / "conf"


def project_root() -> Path:
    """The checkout. Of an installed package the working directory: its own folder may be read-only,
    and the next version replaces it."""
    folder = conf_folder().parent
    return Path.cwd() if folder.is_relative_to(PACKAGE) else folder


@functools.cache
def own_targets() -> frozenset[str]:
    """All `_target_`s in files of conf/ and in options made from signatures."""
    found = {
        value
        for option in declared.options().values()
        for key, value in iterate_leaves(option.node)
        if key.rpartition(".")[2] == "_target_"
    }
    folder = conf_folder()
    for path in folder.rglob("*.yaml"):
        if path.relative_to(folder).parts[0] not in FOREIGN:
            lines = path.read_text(encoding="utf-8").splitlines()
            found.update(x for line in lines for x in NAMED.findall(line.partition("#")[0]))
    return frozenset(found)
