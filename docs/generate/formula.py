"""Formulas in LaTeX as inline SVG, drawn by matplotlib: a page needs no script and no font."""

from __future__ import annotations

import functools
import html
import re

from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.textpath import TextPath

SIZE = 100.0  # of the drawing, so that whole numbers do; on the page: as large as the text
FONT = FontProperties(math_fontfamily="cm", size=SIZE)
SAID = {r"\bigl": r"\left", r"\bigr": r"\right", r"\Bigl": r"\left", r"\Bigr": r"\right"}
SMALL, LARGE = r"\frac", r"\dfrac"  # within a line, and on a line of its own
NAMES = {r"\le": r"\leq", r"\ge": r"\geq", r"\ne": r"\neq", r"\mathcal L": r"\mathcal{L}"}
LETTER = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


def render_formulas(page: str) -> str:
    """The HTML of a page with every formula that arithmatex marked as a drawing."""
    page = re.sub(
        r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda m: _inline(m[1]), page, flags=re.S
    )
    return re.sub(
        r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>',
        lambda m: f'<div class="formula">{_inline(m[1].replace(SMALL, LARGE))}</div>',
        page,
        flags=re.S,
    )


def _inline(escaped: str) -> str:
    return svg(" ".join(html.unescape(escaped).split()))


@functools.cache
def svg(latex: str) -> str:
    """One formula in the colour of the text, its base line on that of the text.

    Raises:
        ValueError: matplotlib cannot read the formula.
    """
    text = f"${_for_matplotlib(latex)}$"
    _, _, depth, _, _ = MathTextParser("path").parse(text, 72, FONT)
    box = (path := TextPath((0, 0), text, prop=FONT)).get_extents().padded(3)
    width, height = box.width / SIZE, box.height / SIZE
    return (
        f'<svg class="tex" role="img" aria-label="{html.escape(latex)}" '
        f'viewBox="{box.x0:.0f} {-box.y1:.0f} {box.width:.0f} {box.height:.0f}" '
        f'style="width:{width:.2f}em;height:{height:.2f}em;vertical-align:{-depth / SIZE:.2f}em">'
        f'<path d="{_outline(path)}"/></svg>'
    )


def _for_matplotlib(latex: str) -> str:
    """What mathtext has under other names."""
    for name, other in SAID.items():
        latex = latex.replace(name + "[", other + "[").replace(name + "]", other + "]")
        latex = latex.replace(name + "(", other + "(").replace(name + ")", other + ")")
        latex = latex.replace(name + r"|", other + "|")
    for name, other in NAMES.items():
        latex = re.sub(re.escape(name) + r"(?![a-z])", lambda _, other=other: other, latex)
    return re.sub(r"\\text\{([^}]*)\}", lambda m: _upright(m[1]), latex)


def _upright(words: str) -> str:
    return r"\mathrm{" + words.replace(" ", r"\ ") + "}"


def _outline(path: Path) -> str:
    parts = []
    for points, code in path.iter_segments():
        if code == Path.CLOSEPOLY:
            parts.append("Z")
            continue
        x, y = points[::2], -points[1::2]
        pairs = " ".join(f"{a:.0f} {b:.0f}" for a, b in zip(x, y, strict=True))
        parts.append(f"{LETTER[code]}{pairs}")
    return "".join(parts)
