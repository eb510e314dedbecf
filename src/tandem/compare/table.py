"""One table: the same cells as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.record.foreign import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str  # of its file
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = [" | ".join(map(as_markdown, line)) for line in lines]
        table = "\n".join(f"| {line} |" for line in cells)
        return "\n\n".join([f"### {as_prose(self.title)}", table, *map(as_prose, self.notes)])

    def csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([map(as_csv, line) for line in (self.columns, *self.rows)])
        return file.getvalue()

    def latex(self) -> str:
        """A booktabs table with its title as the caption."""
        head, *lines = map(as_latex_row, (self.columns, *self.rows))
        return "\n".join(
            [
                r"\begin{table}",
                rf"\caption{{{as_latex(' '.join([self.title + '.', *self.notes]))}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                *(r"\toprule", head, r"\midrule", *lines, r"\bottomrule"),
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?%?|-", re.I)


TAG_OR_LINK = re.compile(r"\\|<(?=[a-zA-Z/!?])|\](?=[(\[:])")
MARKUP = re.compile(rf"{TAG_OR_LINK.pattern}|[|`*]")


def as_markdown(text: str) -> str:
    """A cell that Markdown shows literally: markup, links and cell separators are escaped."""
    return MARKUP.sub(r"\\\g<0>", plain(text))


def as_prose(text: str) -> str:
    """One line whose tags and links are escaped."""
    return TAG_OR_LINK.sub(r"\\\g<0>", plain(text))


def as_csv(text: str) -> str:
    """A cell that spreadsheets do not read as a formula."""
    line = plain(text)
    is_formula = line.lstrip()[:1] in {*"=+-@"} and NUMBER.fullmatch(line) is None
    return f"'{line}" if is_formula else line


SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def as_latex(text: str) -> str:
    """Text that LaTeX prints literally."""
    literal = re.sub(r"[\\~^&%$#_{}]", lambda c: SPECIAL.get(c[0], "\\" + c[0]), plain(text))
    return literal.replace("±", r"$\pm$").replace("<", "$<$").replace(">", "$>$")


def as_latex_row(cells: Sequence[str]) -> str:
    """A row, which may not begin with [ or *: after the end of another one they are an option."""
    row = " & ".join(map(as_latex, cells))
    return rf"{'{}' if row.lstrip()[:1] in ('[', '*') else ''}{row} \\"
