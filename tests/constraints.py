"""The versions that CI installs: `make constraints` writes constraints.txt, `make stale` checks it.

Without an argument it writes the installed versions of all development requirements in
pyproject.toml and of their dependencies. With --stale it lists what a fresh install would change.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILE = ROOT / "constraints.txt"
HEAD = """\
# What `make` and CI install: written by `make constraints`, judged by `make stale` and by tests.
# No addresses: versions come from whatever index pip is told of.
"""
LOOSE = {"torch": "2.13.*"}  # each machine has its own build, with or without a GPU
EXTRA = "dev"
INSTALLED = (EXTRA, "openenv", "gymnasium", "ocr")  # extras that `make` installs


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def named(extra: str = EXTRA) -> Iterator[Requirement]:
    """The direct requirements, with those of an extra and of the extras that it includes."""
    known = project()
    texts = known["dependencies"] if extra == EXTRA else ()
    for text in (*texts, *known["optional-dependencies"][extra]):
        requirement = Requirement(text)
        if requirement.name == known["name"]:
            for other in sorted(requirement.extras):
                yield from named(other)
        else:
            yield requirement


def pinned_versions() -> dict[str, SpecifierSet]:
    """Name -> the versions that constraints.txt admits."""
    lines = (line.partition("#")[0].strip() for line in FILE.read_text().splitlines())
    found = [Requirement(line) for line in lines if line]
    return {canonicalize_name(one.name): one.specifier for one in found}


def requirements(*extras: str) -> dict[str, str]:
    """Name -> installed version, of the requirements of extras and of their dependencies."""
    found: dict[str, str] = {}
    left = [(one, frozenset({""})) for extra in extras for one in named(extra)]
    while left:
        requirement, asked = left.pop()
        if not _applies(requirement, asked):
            continue
        name, own = canonicalize_name(requirement.name), frozenset({"", *requirement.extras})
        if name in found and own == {""}:
            continue
        found[name] = metadata.version(name)
        left += [(Requirement(text), own) for text in metadata.requires(name) or ()]
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    if requirement.marker is None:
        return True
    environments = ({**default_environment(), "extra": extra} for extra in extras)
    return any(requirement.marker.evaluate(one) for one in environments)


def text_of(versions: Mapping[str, str]) -> str:
    lines = [f"{name}=={LOOSE.get(name, versions[name])}" for name in sorted(versions)]
    return "\n".join([HEAD.rstrip(), *lines, ""])


def stale(versions: Mapping[str, str]) -> list[str]:
    """Installed versions that constraints.txt does not admit, a line each."""
    admitted = pinned_versions()
    found = []
    for name in sorted(versions):
        if name not in admitted:
            found.append(f"{name}: not in {FILE.name}, and {versions[name]} is installed")
        elif Version(versions[name]) not in admitted[name]:
            found.append(f"{name}{admitted[name]}: {versions[name]} is what a fresh install takes")
    return found


def contradictions() -> list[str]:
    """Direct requirements that no version in constraints.txt satisfies, a line each."""
    admitted = pinned_versions()
    found = []
    for one in (one for extra in INSTALLED for one in named(extra)):
        pin = admitted.get(canonicalize_name(one.name))
        if pin is None:
            found.append(f"{one.name} of pyproject.toml is not in {FILE.name}")
            continue
        version = re.sub(r"^==|\.\*$", "", str(pin))
        if version not in one.specifier:
            found.append(f"{one.name}{pin} of {FILE.name} is not {one.specifier}")
    return found


def main(arguments: list[str]) -> None:
    if arguments == ["--stale"]:
        lines = [*contradictions(), *stale(requirements(*INSTALLED))]
        print("\n".join(lines) or f"{FILE.name} is what a fresh install takes")
        sys.exit(bool(lines))
    FILE.write_text(text_of(requirements(*INSTALLED)))


if __name__ == "__main__":
    main(sys.argv[1:])
