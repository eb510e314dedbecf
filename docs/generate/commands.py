"""Blocks of commands within a page: a long line goes on indented, and its comment is grey."""

from __future__ import annotations

import re

BLOCK = re.compile(
    r'(<div class="language-text highlight"><pre><span></span><code>)(.*?)(</code></pre></div>)',
    re.S,
)
COMMENT = re.compile(r" {2,}(# .*)$")


def wrap_lines(page: str) -> str:
    """The HTML of a page with an element for each line of its commands."""
    return BLOCK.sub(
        lambda found: found[1] + "".join(map(_line, found[2].splitlines())) + found[3], page
    )


def _line(text: str) -> str:
    marked = COMMENT.sub(r'  <span class="c1">\1</span>', text)
    return f'<span class="line">{marked}\n</span>'
