"""SVG files of docs/assets within the page, so that they take the colours of its theme."""

from __future__ import annotations

import re

from generate.repository import ROOT

IMAGE = re.compile(r'<img alt="([^"]*)" src="(?:[^"]*/)?(assets/[\w-]+\.svg)"[^>]*/?>')


def inline_drawings(page: str) -> str:
    """The HTML of a page with its drawings in place of the links to them."""

    def drawing(found: re.Match) -> str:
        text = (ROOT / "docs" / found[2]).read_text(encoding="utf-8")
        body = text[text.index("<svg") :]
        return body.replace("<svg", f'<svg aria-label="{found[1]}"', 1)

    return IMAGE.sub(drawing, page)
