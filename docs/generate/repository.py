"""Files of the repository that pages link to: each becomes a page of the site, or a file of it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = "docs"
# [text](target), and not an address, an anchor alone or a mail.
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(\))")
LANGUAGES = {
    ".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json",
    ".cff": "yaml", ".txt": "text", "": "text", ".css": "css",
}  # fmt: skip
SHOWN_IN_FOLDERS = (".py", ".yaml", ".md")
LARGEST = 100_000  # characters of a file that is shown as a page


def place(origin: str, target: str) -> str:
    """The path in the repository of what a file at `origin` links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def uri_of(path: str) -> str:
    """Where the site has a path of the repository; of conf/ it has pages that say more."""
    if preset := re.fullmatch(r"conf/algorithm/([a-z]\w*)\.yaml", path):
        return f"algorithms/{preset[1]}.md"
    if group := re.fullmatch(r"conf(?:/(\w+))?", path):
        return f"configuration/{group[1] or 'index'}.md"
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    target = ROOT / path
    if target.is_dir():
        readme = f"{path}/README.md"
        return f"source/{readme if (ROOT / readme).exists() else path + '/index.md'}"
    if target.suffix == ".md":
        return f"source/{path}"
    return f"source/{path}.md" if _is_shown(target) else f"source/{path}"


def _is_shown(path: Path) -> bool:
    return path.suffix in LANGUAGES and path.stat().st_size <= LARGEST


def relink(text: str, origin: str, own_uri: str) -> str:
    """A page with its links led to where the site has what they name."""

    def lead(found: re.Match) -> str:
        before, target, anchor, after = found.groups()
        path = place(origin, target)
        if not (ROOT / path).exists():
            return found[0]  # mkdocs names it, and refuses it under --strict
        led = posixpath.relpath(uri_of(path), posixpath.dirname(own_uri) or ".")
        return f"{before}{led}{anchor or ''}{after}"

    return outside_code(text, lambda part: LINK.sub(lead, part))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with all but its fenced blocks changed."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def linked_paths(text: str, origin: str) -> Iterator[str]:
    """The paths outside of docs/ that a page links to."""
    for found in LINK.finditer(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        path = place(origin, found[2])
        if not path.startswith(f"{DOCS}/") and (ROOT / path).exists():
            yield path


def follow_links(pages: dict[str, str]) -> dict[str, str]:
    """Path -> text of all that pages (origin -> text) link to outside of docs/, however far."""
    found: dict[str, str] = {}
    left = [path for origin, text in pages.items() for path in linked_paths(text, origin)]
    while left:
        path = left.pop()
        if path in found or not uri_of(path).startswith("source/"):
            continue
        found[path] = page_of(path)
        if uri_of(path).endswith("README.md") or path.endswith(".md"):
            origin = origin_of(path)
            left += linked_paths(found[path], origin)
    return found


def origin_of(path: str) -> str:
    """What a path shows: of a folder with a README that, else the path itself."""
    readme = f"{path}/README.md"
    return readme if (ROOT / readme).exists() else path


def page_of(path: str) -> str:
    """The Markdown that shows a file or a folder; of what is no text, nothing."""
    target = ROOT / origin_of(path)
    if target.is_dir():
        files = sorted(x for x in target.rglob("*") if x.suffix in SHOWN_IN_FOLDERS)
        shown = "".join(f"## {x.relative_to(target)}\n\n{fence(x)}" for x in files)
        return f"# {path}\n\n{shown}"
    if target.suffix == ".md":
        return target.read_text(encoding="utf-8")
    return f"# {path}\n\n{fence(target)}" if _is_shown(target) else ""


def fence(path: Path) -> str:
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n\n"
