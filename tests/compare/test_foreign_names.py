"""Untrusted names: shown as they are, and obeyed by no terminal, table or spreadsheet."""

import csv
import io
import re

import pytest
from spoilt_runs import remove, spoil_json
from written_runs import write_run

from tandem.compare.__main__ import main
from tandem.compare.table import Table
from tandem.record.reading.runs import read


def test_a_name_controls_neither_a_terminal_nor_a_file(folder, capsys):
    name = "\x1b]0;x\x07\x1b[31m$\\foo$\u202e"
    write_run(folder / "\x1b[2Jnamed", [0.1, 0.9], algorithm=name)
    (folder / "odd" / "metrics.jsonl").write_text("x\n")
    (folder / "odd").rename(folder / "odd\x1b[2J\udcff")
    main([str(folder), f"out={folder / 'report'}"])
    said = capsys.readouterr()
    files = [file.read_text() for end in ("md", "csv", "tex") for file in folder.rglob(f"*.{end}")]
    assert "foo" in said.out and len(files) > 5
    texts = [said.out, said.err, *files]
    assert all(c.isprintable() for text in texts for c in text.replace("\n", ""))
    remove(folder / "odd\x1b[2J\udcff")


def test_the_name_of_a_commit_is_a_commit(tmp_path):
    run = write_run(tmp_path / "run", [0.1, 0.2])
    spoil_json(run, starts=[{"code": {"commit": "a\n\\input{x}", "dirty": False}}])
    assert read(run).code == ["unknown code"]


ODD = [
    "<img src=x onerror=alert(1)>", "[a](javascript:b)", "a|b\nc", "`a*b`\\", "</td>", "[a][b]",
]  # fmt: skip


def table(*cells: str, title: str = "t") -> Table:
    return Table(name="scores", title=title, columns=("variant",), rows=[(x,) for x in cells])


def test_names_are_shown_by_markdown_as_they_are():
    text = table(*ODD, title=ODD[0]).markdown()
    assert text.splitlines()[0] == "### \\<img src=x onerror=alert(1)>"
    assert text.splitlines()[4:] == [
        "| \\<img src=x onerror=alert(1)> |", "| [a\\](javascript:b) |", "| a\\|b c |",
        "| \\`a\\*b\\`\\\\ |", "| \\</td> |", "| [a\\][b] |",
    ]  # fmt: skip
    plain = ("lr=0.001, group_size=4", "[0.100, 0.200]", "-0.3", "p < 0.001", "-")
    assert table(*plain).markdown().splitlines()[4:] == [f"| {cell} |" for cell in plain]


def test_no_cell_is_a_formula_and_numbers_stay():
    formulas = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1")
    plain = ("-0.25", "+1e-3", "-", "12", "[-1, 1]", "a=b", "-.5")
    rows = list(csv.reader(io.StringIO(table(*formulas, *plain).csv(), newline="")))[1:]
    assert [row[0] for row in rows] == [
        *(f"'{cell}".replace("\t", " ").replace("\r", " ") for cell in formulas),
        *plain,
    ]


@pytest.mark.parametrize("name", ["[b](x)", "*", " [1]"])
def test_a_name_is_no_optional_argument_of_the_end_of_a_row(name):
    """LaTeX looks for one beyond the end of the line."""
    made = table("a", name).latex()
    assert f"{{}}{name}" in made and not re.search(r"(\\\\|rule)\s*[\[*]", made)


def test_a_name_is_one_line_of_latex():
    assert "a b \\textbackslash{}input\\{x\\}" in table("a\n\nb \\input{x}").latex().replace(
        "  ", " "
    )
