"""The picture of the README, drawn from measured runs by `make picture`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from generate.curves import Measured, read_runs
from generate.repository import ROOT

PICTURE = ROOT / "docs" / "assets" / "both_learn.svg"
PANELS = {
    "letters": ("Tokens: sort 4 to 8 letters", "mean reward, held-out prompts", "#3f6fd8"),
    "whole": ("Images: paint the prompt", "mean reward, other noise", "#d9622b"),
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 400, 280, 44, 46, 40, 24
STYLE = """\
<style>
.drawing { color: #1f2937 }
@media (prefers-color-scheme: dark) { .drawing { color: #e5e7eb } }
.both text { fill: currentColor; font: 16px system-ui, sans-serif }
.both .head { font-size: 18px; font-weight: 700 }
.both .small { font-size: 15px; opacity: 0.75 }
.both .axis { stroke: currentColor; stroke-opacity: 0.18 }
.both polyline { fill: none; stroke-width: 3; stroke-linejoin: round }
.both .seed { stroke-width: 1.2; opacity: 0.5 }
</style>"""


def picture() -> str:
    """Two panels, one algorithm: GRPO on the embedded language model and flow model."""
    shapes = [STYLE]
    for number, (task, words) in enumerate(PANELS.items()):
        shift = number * (WIDTH + GAP)
        panel = "\n".join(_panel(read_runs()[task, "grpo"], *words))
        shapes.append(f'<g transform="translate({shift} 0)">\n{panel}\n</g>')
    said = (
        "algorithm=grpo: one loss, one training step. Thin lines are seeds, thick ones their mean"
    )
    width = 2 * WIDTH + GAP
    shapes.append(
        f'<text class="small" x="{width / 2}" y="{HEIGHT + 22}" text-anchor="middle">{said}</text>'
    )
    box = f'viewBox="0 0 {width} {HEIGHT + 34}"'
    head = f'<svg class="drawing both" xmlns="http://www.w3.org/2000/svg" {box} role="img">'
    return "\n".join([head, *shapes, "</svg>", ""])


def _panel(runs: Measured, title: str, axis: str, colour: str) -> Iterator[str]:
    widest = max(max(curve) for curve in runs.rewards)
    yield f'<text class="head" x="{LEFT}" y="18">{title}</text>'
    yield f'<text class="small" x="{LEFT}" y="39">{axis}</text>'
    for share in (0, 0.5, 1):
        x, y = _at(0, share, widest)
        yield f'<line class="axis" x1="{x}" x2="{WIDTH}" y1="{y:.0f}" y2="{y:.0f}"/>'
        yield f'<text class="small" x="{x - 6}" y="{y + 4:.0f}" text-anchor="end">{share:g}</text>'
    for part, anchor in ((0, "start"), (1, "end")):
        x, y = _at(part * widest, 0, widest)
        label = f"{part * widest:,}" + (" samples" if part else "")
        place = f'x="{x:.0f}" y="{y + 18:.0f}" text-anchor="{anchor}"'
        yield f'<text class="small" {place}>{label}</text>'
    for curve in runs.rewards:
        yield _line(curve.items(), widest, colour, ' class="seed"')
    ends = zip(*(curve.items() for curve in runs.rewards), strict=True)
    middle = [(mean(x for x, _ in at), mean(y for _, y in at)) for at in ends]
    yield _line(middle, widest, colour, "")
    for (samples, share), where, shift in ((middle[0], "start", 26), (middle[-1], "end", -12)):
        x, y = _at(samples, share, widest)
        place = f'x="{x:.0f}" y="{y + shift:.0f}" text-anchor="{where}"'
        yield f"<text {place}>{share:.2f}</text>"


def _line(points: Sequence, widest: int, colour: str, kind: str) -> str:
    places = " ".join("{:.0f},{:.0f}".format(*_at(x, y, widest)) for x, y in points)
    return f'<polyline{kind} stroke="{colour}" points="{places}"/>'


def _at(samples: float, share: float, widest: int) -> tuple[float, float]:
    down = HEIGHT - TOP - BOTTOM
    return LEFT + (WIDTH - LEFT) * samples / widest, TOP + 12 + down * (1 - share)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"wrote {PICTURE}")
