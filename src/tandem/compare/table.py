"""One table: the same cells as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str  # of its file
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = [
            " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line)
            for line in lines
        ]
        table = "\n".join(f"| {line} |" for line in cells)
        return "\n\n".join([f"### {self.title}", table, *self.notes])

    def csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([self.columns, *self.rows])
        return file.getvalue()

    def latex(self) -> str:
        """A booktabs table with its title as the caption."""
        lines = [" & ".join(map(escaped, row)) + r" \\" for row in self.rows]
        head = " & ".join(map(escaped, self.columns)) + r" \\"
        return "\n".join(
            [
                r"\begin{table}",
                rf"\caption{{{escaped(' '.join([self.title + '.', *self.notes]))}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                *(r"\toprule", head, r"\midrule", *lines, r"\bottomrule"),
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    plain = re.sub(r"[\\~^&%$#_{}]", lambda c: SPECIAL.get(c[0], "\\" + c[0]), text)
    return plain.replace("±", r"$\pm$").replace("<", "$<$").replace(">", "$>$")
