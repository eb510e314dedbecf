"""Untrusted plans, selections, bands and samples: named, left out, and never obeyed."""

import json
import math
import os
import re

import pytest
import torch

from tandem.compare.__main__ import main
from tandem.compare.report.gallery import make_gallery
from tandem.record.pictures import save
from tandem.record.reading.runs import read
from tandem.record.reading.variants import Variant

ROW = {"kind": "eval", "prompt": "a", "reward": 1.0, "output": "b"}


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


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": math.nan},
        {"reward": "1"},
        {"prompt": [1]},
        {"steps": [1]},
        {"output": {"file": "../../good0/private.png", "place": 0, "size": [1, 1]}},
        {"output": {"file": "none.png", "place": 0, "size": [1, 1]}},
        {"output": {"file": "own.png", "place": 0, "size": [0, 0]}},
    ],
)
def test_samples_that_cannot_be_shown_are_named_and_left_out(folder, changes):
    save(torch.zeros(1, 1, 3, dtype=torch.uint8), folder / "good0" / "private.png")
    table = folder / "odd" / "samples" / "iteration_000001.jsonl"
    table.parent.mkdir(exist_ok=True)
    save(torch.zeros(1000, 1000, 3, dtype=torch.uint8), table.parent / "own.png")
    table.write_text(json.dumps(ROW | changes) + "\n")
    found = make_gallery([Variant(name="odd", runs=[read(folder / "odd")])])
    assert found["columns"] == []
    assert found["note"].startswith(f"left out: samples of {folder}/odd (")
