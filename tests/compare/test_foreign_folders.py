"""An untrusted folder read beside one's own: named, left out, and never obeyed."""

import csv
import io
import json
import math
import os
import re
from pathlib import Path

import pytest
import torch
from written_runs import write_prompts, write_run

from tandem.compare.__main__ import main
from tandem.compare.report.gallery import make_gallery
from tandem.compare.table import Table
from tandem.config import ConfigError, configuration
from tandem.record import foreign
from tandem.record.pictures import save
from tandem.record.reading.runs import read, read_all
from tandem.record.reading.variants import Variant

BOMB = "a: &a [x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(20)
)


def spoil_fifo(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)


def spoil_json(run: Path, **changes: object) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | changes))


def spoil_config(run: Path, text: str) -> None:
    path = run / "config.yaml"
    path.write_text(path.read_text() + text)


SPOILS = {  # of config.yaml and the logs, which resume= reads too
    "an alias bomb": lambda run: spoil_config(run, BOMB),
    "a deep configuration": lambda run: spoil_config(run, f"deep: {'[' * 30000}{']' * 30000}\n"),
    "a list": lambda run: (run / "config.yaml").write_text("[1, 2]"),
    "words that are none": lambda run: spoil_config(run, "overrides: [[1]]\n"),
    "choices that are none": lambda run: spoil_config(run, "choices: 3\n"),
    "a tag": lambda run: spoil_config(run, "x: !!python/object/apply:os.getcwd []\n"),
    "bytes": lambda run: (run / "config.yaml").write_bytes(bytes(range(256))),
    "a FIFO for a log": lambda run: spoil_fifo(run, "metrics.jsonl"),
    "a FIFO for times": lambda run: spoil_fifo(run, "timing.jsonl"),
    "a FIFO for the manifest": lambda run: spoil_fifo(run, "manifest.json"),
    "a large file": lambda run: os.truncate(run / "config.yaml", 1 << 33),
}
OF_COMPARE = {
    "an infinite seed": lambda run: spoil_config(run, "seed: .inf\n"),
    "no iterations": lambda run: spoil_config(run, "iterations: many\n"),
    "a FIFO for the configuration": lambda run: spoil_fifo(run, "config.yaml"),
    "a deep manifest": lambda run: (run / "manifest.json").write_text("[" * 100000),
    "a deep line": lambda run: (run / "metrics.jsonl").write_text(
        '{"iteration": 0, "x": ' + "[" * 100000 + "}\n"
    ),
    "a line that is no JSON": lambda run: (run / "metrics.jsonl").write_text(
        '{"iteration": 0, x}\n'
    ),
    **{
        f"{value} for a number": lambda run, value=value: (run / "metrics.jsonl").write_text(
            f'{{"iteration": 0, "eval/accuracy": {value}}}\n'
        )
        for value in ('"0.5"', "true", "[]", "{}", "1" + "0" * 400)
    },
    **{
        f"{value} for an iteration": lambda run, value=value: (run / "metrics.jsonl").write_text(
            f'{{"iteration": {value}, "eval/accuracy": 0.5}}\n'
        )
        for value in ("NaN", "0.5", "-1", "1e300", "9" * 30)
    },
    "times that are none": lambda run: (run / "timing.jsonl").write_text(
        '{"iteration": 0, "time/total": "x"}\n'
    ),
    "answers that are none": lambda run: (run / "evaluations.jsonl").write_text(
        '{"iteration": 1, "prompts": [1], "sources": ["a"], "eval/accuracy": ["x"]}\n'
    ),
    "a folder for samples": lambda run: (run / "samples/iteration_000001.jsonl").mkdir(
        parents=True
    ),
    "very many keys": lambda run: spoil_config(run, "\n".join(f"k{i}: 1" for i in range(25_001))),
    "starts that are none": lambda run: spoil_json(run, starts=3),
    "a log without an end": lambda run: (
        (run / "metrics.jsonl").unlink(), (run / "metrics.jsonl").symlink_to("/dev/zero")
    ),
}  # fmt: skip


def gone(run: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "timing.jsonl", "manifest.json"):
        (run / name).unlink(missing_ok=True)


@pytest.fixture
def folder(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"good{seed}", [0.1, 0.2], seed=seed)
    write_run(tmp_path / "odd", [0.1, 0.9], seed=2)
    yield tmp_path
    gone(tmp_path / "odd")


@pytest.mark.parametrize(
    "spoil", [*SPOILS.values(), *OF_COMPARE.values()], ids=[*SPOILS, *OF_COMPARE]
)
def test_what_cannot_be_read_is_named_and_left_out(folder, spoil):
    spoil(folder / "odd")
    odd = folder / "odd"
    found, left_out = read_all([folder / "good0", odd, folder / "good1"])
    assert [run.seed for run in found] == [0, 1]
    assert len(left_out) == 1 and "\n" not in left_out[0] and len(left_out[0]) < 400
    assert left_out[0].startswith(f"left out: {odd} cannot be read as a run (")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda run: spoil_json(run, starts=[]),
            "manifest.json: starts must be a list of at least",
        ),
        (lambda run: spoil_json(run, starts=[{}]), "manifest.json: a start has no code"),
        (lambda run: spoil_json(run, starts=[1]), "manifest.json: a start is not a JSON object"),
        (
            lambda run: spoil_json(run, starts=[{"code": {}}]),
            "manifest.json: the code of a start has no commit",
        ),
        (lambda run: (run / "manifest.json").write_text("{}"), "manifest.json has no starts"),
        (
            lambda run: (run / "manifest.json").write_text(""),
            "manifest.json is not JSON: Expecting",
        ),
        (lambda run: (run / "job.json").write_text("{}"), "job.json has no code"),
        (
            lambda run: (run / "config.yaml").write_text("seed: 2\n"),
            "config.yaml has no iterations",
        ),
        (
            lambda run: spoil_config(run, "iterations: -5\n"),
            "config.yaml: iterations must be a whole number from 0 to 9,007,199,254,740,991",
        ),
        (
            lambda run: spoil_config(run, "x: [tiny\n"),
            "config.yaml is not YAML: while parsing a flow sequence; did not find expected",
        ),
        (
            lambda run: spoil_config(run, "guards: {judges: 5}\n"),
            "config.yaml: guards.judges must be a list of names",
        ),
        (
            lambda run: (run / "evaluations.jsonl").write_text('{"iteration": 1}\n'),
            "a line of evaluations.jsonl has no prompts",
        ),
        *(
            (
                lambda run, value=value: (run / "metrics.jsonl").write_text(
                    f'{{"iteration": 0, "eval/accuracy": {value}}}\n'
                ),
                "metrics.jsonl has a number above 1e+60",
            )
            for value in ("1e+300", "-1.7e308", "1e+61", "1" + "0" * 400)
        ),
        (
            lambda run: (run / "evaluations.jsonl").write_text(
                '{"iteration": 1, "prompts": [1], "sources": ["a"], "eval/accuracy": [1e300]}\n'
            ),
            "evaluations.jsonl has eval/accuracy that is above 1e+60",
        ),
    ],
)
def test_why_a_run_is_left_out_is_said_in_words(folder, spoil, why):
    spoil(folder / "odd")
    _, [said] = read_all([folder / "good0", folder / "odd"])
    assert said.startswith(f"left out: {folder / 'odd'} cannot be read as a run ({why}")
    assert "Error" not in said


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [9e59, 5e-324])
def test_the_largest_and_smallest_numbers_are_compared_without_a_warning(folder, value):
    for seed in range(3):
        write_run(
            folder / f"large{seed}", [0.1, value * (1 - seed / 9)], seed=seed, algorithm="ppo"
        )
    main([str(folder), f"out={folder / 'report'}"])
    assert (folder / "report" / "scores.pdf").exists()


@pytest.mark.parametrize(
    "plan", ["[]", "{", '{"jobs": [3]}', '{"jobs": {"\\u001b[2J": []}}', "NaN"]
)
def test_a_plan_that_cannot_be_read_is_named_and_the_runs_are_compared(folder, capsys, plan):
    (folder / "sweep.json").write_text(plan)
    main([str(folder)])
    said = capsys.readouterr().out
    assert "left out: the plan" in said and re.search(r"^grpo +3 ", said, re.M)


@pytest.mark.parametrize(
    "changes",
    [{"candidates": []}, {"metric": 3}, {"candidates": 3}, {"candidates": [{"name": "a"}]}]
    + [
        {"candidates": [{"name": "a", "mean": x, "seeds": [1], "without": []}]}
        for x in (1e300, "x")
    ],
)
def test_a_selection_that_cannot_be_read_is_named_and_the_runs_are_compared(
    folder, capsys, changes
):
    whole = {
        "metric": "eval/accuracy", "silent": [], "overrides": [], "fresh": [],
        "candidates": [{"name": "a", "mean": 0.5, "seeds": [1], "without": []}],
    }  # fmt: skip
    (folder / "selection.json").write_text(json.dumps(whole))
    main([str(folder)])
    assert "best of k = 1" in capsys.readouterr().out
    (folder / "selection.json").write_text(json.dumps(whole | changes))
    main([str(folder)])
    said = capsys.readouterr().out
    assert "selection.json cannot be read" in " ".join(said.split())
    assert re.search(r"^grpo +3 ", said, re.M) and "best of k" not in said


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
    gone(folder / "odd\x1b[2J\udcff")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_or_file_is_named(folder, capsys):
    (folder / "good1" / "samples").mkdir(exist_ok=True)
    table = folder / "good1" / "samples" / "iteration_000001.jsonl"
    table.touch()
    table.chmod(0)
    (folder / "odd").chmod(0)
    main([str(folder)])
    (folder / "odd").chmod(0o700)
    said = capsys.readouterr().err
    assert f"left out: {folder / 'odd'} cannot be read" in said
    assert "(iteration_000001.jsonl may not be read by this user)" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": []},
        {"variants": 3},
        {"metric": 3},
        {"configuration": [1]},
        {"variants": [{"n": "10"}]},
        {"variants": [{"x": [[0]]}]},
        {"variants": [{"mean": ["a"]}]},
    ],
)
def test_a_band_that_cannot_be_read_is_refused_in_one_line(folder, capsys, changes):
    main([str(folder), f"save_band={folder}"])
    path = folder / "expected.json"
    whole = json.loads(path.read_text())
    if isinstance(changes.get("variants"), list):
        changes = {"variants": [whole["variants"][0] | one for one in changes["variants"] if one]}
    path.write_text(json.dumps(whole | changes))
    with pytest.raises(SystemExit) as ended:
        main([str(folder), f"band={folder}"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert said.startswith(f"band={folder}: expected.json there cannot be read (")


def test_a_band_that_is_a_fifo_is_refused(folder, capsys):
    os.mkfifo(folder / "expected.json")
    with pytest.raises(SystemExit):
        main([str(folder), f"band={folder}"])
    assert "(expected.json is not a regular file)" in capsys.readouterr().err


def test_samples_that_a_link_leads_to_are_not_shown(folder):
    home = folder / "private"
    home.mkdir()
    (home / "iteration_000001.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "odd" / "samples").symlink_to(home)
    found = make_gallery([Variant(name="odd", runs=[read(folder / "odd")])])
    assert found["columns"] == []


def test_of_a_file_that_a_log_links_to_nothing_is_quoted(folder):
    (folder / "own").write_text("root:secret\n")
    (folder / "odd" / "metrics.jsonl").unlink()
    (folder / "odd" / "metrics.jsonl").symlink_to(folder / "own")
    _, left_out = read_all([folder / "good0", folder / "odd"])
    assert "metrics.jsonl has a line that is not a JSON object of numbers" in left_out[0]
    assert "secret" not in left_out[0]


def test_a_comparison_says_what_it_left_out(folder, capsys):
    SPOILS["an alias bomb"](folder / "odd")
    main([str(folder)])
    said = capsys.readouterr()
    assert said.err.startswith(f"left out: {folder}/odd cannot be read as a run (conf")
    assert re.search(r"^grpo +2 ", said.out, re.M) and "left out:" in said.out


def test_a_damaged_line_before_the_last_leaves_out_its_run_alone(folder, capsys):
    """Only lines that the comparison needs are read, so it is found while comparing."""
    for name in ("good0", "good1", "odd"):
        for iteration in (0, 1, 2):
            write_prompts(folder / name, [0.1, 0.3], iteration=iteration)
    path = folder / "odd" / "evaluations.jsonl"
    first, scored, last = path.read_text().splitlines()
    path.write_text("\n".join([first, scored.replace("sources", "sorces"), last, ""]))
    main([str(folder)])
    said = capsys.readouterr()
    why = "cannot be read as a run (a line of evaluations.jsonl has no sources)"
    assert said.err == f"left out: {folder}/odd {why}\n"
    assert re.search(r"^grpo +2 ", said.out, re.M) and "left out:" in said.out
    with pytest.raises(SystemExit):
        main([str(folder / "odd")])
    assert capsys.readouterr().err == f"{folder}/odd {why}\n"


@pytest.mark.parametrize("value", ["NaN", "-Infinity"])
def test_what_is_not_finite_is_none(folder, value):
    line = f'{{"iteration": 1, "eval/accuracy": {value}, "eval/reward": 1}}\n'
    (folder / "odd" / "metrics.jsonl").write_text(line)
    run = read(folder / "odd")
    assert run.score("eval/accuracy") is None and run.score("eval/reward") == 1.0


ROW = {"kind": "eval", "prompt": "a", "reward": 1.0, "output": "b"}


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": math.nan},
        {"reward": "1"},
        {"prompt": [1]},
        {"steps": [1]},
        {"output": {"file": "../../good0/private.png", "place": 0, "size": [1, 1]}},
        {"output": {"file": "none.png", "place": 0, "size": [1, 1]}},
    ],
)
def test_samples_that_cannot_be_shown_are_named_and_left_out(folder, changes):
    save(torch.zeros(1, 1, 3, dtype=torch.uint8), folder / "good0" / "private.png")
    table = folder / "odd" / "samples" / "iteration_000001.jsonl"
    table.parent.mkdir(exist_ok=True)
    table.write_text(json.dumps(ROW | changes) + "\n")
    found = make_gallery([Variant(name="odd", runs=[read(folder / "odd")])])
    assert found["columns"] == []
    assert found["note"].startswith(f"left out: samples of {folder}/odd (")


def test_nothing_to_compare_is_an_error(folder, capsys):
    SPOILS["an alias bomb"](folder / "odd")
    with pytest.raises(SystemExit):
        main([str(folder / "odd")])
    assert "cannot be read as a run" in capsys.readouterr().err


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_run_that_cannot_be_read_does_not_go_on(folder, spoil):
    spoil(folder / "odd")
    with pytest.raises(ConfigError) as refused:
        configuration([f"resume={folder / 'odd'}"])
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    assert str(refused.value).startswith(f"resume={folder / 'odd'}: it cannot be read as a run (")


def test_a_file_as_large_as_is_allowed_is_read(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", [0.1, 0.2])
    size = (run / "config.yaml").stat().st_size
    monkeypatch.setattr(foreign, "CONFIG_BYTES", size)
    assert read(run).seed == 0
    monkeypatch.setattr(foreign, "CONFIG_BYTES", size - 1)
    with pytest.raises(ValueError, match=rf"config\.yaml has {size} bytes, more than {size - 1}"):
        read(run)


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


def test_a_name_is_one_line_of_latex():
    assert "a b \\textbackslash{}input\\{x\\}" in table("a\n\nb \\input{x}").latex().replace(
        "  ", " "
    )
