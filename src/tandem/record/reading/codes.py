"""The code that a run ran: the commit of each start, and the versions of its plugins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tandem.record.foreign import check_object, read_object

COMMIT = re.compile("[0-9a-zA-Z]+")
PLUGIN, SHA256 = re.compile(r"\w+(\.\w+)*"), re.compile("[0-9a-f]{64}")
SHOWN = 8  # digits of a hash


def read_codes(manifest: Path) -> list[Mapping[str, object]]:
    """The code of each start. Raises ValueError for a manifest without a start."""
    starts = read_object(manifest, "starts")["starts"]
    if not (isinstance(starts, list) and starts):
        raise ValueError(f"{manifest.name}: starts must be a list of at least one start")
    codes = [check_object(one, f"{manifest.name}: a start", "code")["code"] for one in starts]
    return [check_object(one, f"{manifest.name}: the code of a start", "commit") for one in codes]


def name_code(of_start: Mapping[str, object]) -> str:
    """The commit and the plugins, for example "0123456789+changes with my_loss 89abcdef"."""
    commit = of_start["commit"]
    if not isinstance(commit, str) or COMMIT.fullmatch(commit) is None:
        own = "unknown code"  # an untrusted text must not reach tables and figures
    else:
        own = f"{commit[:10]}+changes" if of_start.get("dirty") else commit[:10]
    return " with ".join([own, *(f"{name} {sha}" for name, sha in _list_plugins(of_start))])


def find_versions(starts: Sequence[Mapping[str, object]]) -> dict[str, frozenset[str]]:
    """The hashes under which any start imported a plugin; none: they were not recorded."""
    found: dict[str, frozenset[str]] = {}
    for name, sha in (pair for one in starts for pair in _list_plugins(one)):
        found[name] = found.get(name, frozenset()) | {sha}
    return found


def _list_plugins(of_start: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    plugins = of_start.get("plugins")
    pairs: Iterable[tuple[str, object]] = plugins.items() if isinstance(plugins, dict) else ()
    for name, sha in pairs:
        if PLUGIN.fullmatch(name) and isinstance(sha, str) and SHA256.fullmatch(sha):
            yield name, sha[:SHOWN]
