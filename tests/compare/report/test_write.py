"""The report page: equal to the tables, without network access, running nothing that it shows."""

import errno
import json
import os
import re

import numpy as np
import pytest
import torch
from written_runs import wordy, write_run, write_sweep

from tandem.compare import expected_bands, selection
from tandem.compare.__main__ import main
from tandem.compare.comparison import Request, compare
from tandem.compare.report.payload import make_empty_payload
from tandem.compare.report.write import write_page, write_report
from tandem.compare.selection import Candidate
from tandem.record import durable
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import group_runs
from tandem.record.run_record import RunRecord

FINALS = {"grpo": [0.8, 0.82, 0.81], "rloo": [0.5, 0.53, 0.51]}
EVIL = "</script><img src=x onerror=alert(1)>"


def page_of(folder):
    runs = [read(path) for path in find([folder])]
    return write_report(compare(runs, Request()), "a <title>")


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, FINALS)
    for place in find([folder]):
        record = RunRecord(place)
        for iteration in (0, 1):
            row = {"kind": "eval", "prompt": "sort ba>", "output": EVIL, "reward": 0.5}
            record.samples(iteration, [row, {**row, "kind": "greedy", "output": "unseen"}])
    return folder


def test_the_page_holds_curves_scores_and_claims(sweep):
    data = data_of(page_of(sweep))
    grpo, rloo = data["variants"]
    assert grpo["name"] == "grpo" and [s["score"] for s in grpo["scores"]] == [0.8, 0.82, 0.81]
    curve = rloo["curves"]["eval/accuracy"]
    assert curve["x"]["samples"] == [0, 64]
    neither = {"died": False, "running": False}
    assert curve["seeds"] == [{"x": {}, "y": [0, y], **neither} for y in (0.5, 0.53, 0.51)]
    assert data["pairs"][0]["text"] == "grpo beats rloo" and data["pairs"][0]["claim"]
    assert data["axes"] == ["iterations", "samples", "tokens", "seconds", "cpu_seconds"]


def test_on_a_full_disk_the_report_that_was_there_stays(sweep, tmp_path, capsys, monkeypatch):
    words = [str(sweep), f"out={tmp_path / 'out'}"]
    main([*words, "by=algorithm"])
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert before.keys() > {"report.html", "scores.md", "scores.pdf"}
    synced = iter(range(3))

    def fill(_) -> None:
        if next(synced, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable.os, "fsync", fill)
    with pytest.raises(SystemExit):
        main([*words, "metric=reward/mean"])
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"out={tmp_path}/out: the report \([\d,]+ bytes\) could not be written "
        r"\(No space left on device\); free some space, or choose another folder\n",
        said,
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_completions_lie_beside_each_other_by_prompt_and_iteration(sweep):
    gallery = data_of(page_of(sweep))["gallery"]
    assert (gallery["prompts"], gallery["iterations"]) == (["sort ba>"], [0, 1])
    assert [column["name"] for column in gallery["columns"]] == ["grpo, seed 0", "rloo, seed 0"]
    assert gallery["columns"][0]["cells"][0]["1"] == [{"text": EVIL, "reward": 0.5}]


def ask(place, prompt):
    row = {"kind": "eval", "prompt": prompt, "output": "?", "reward": 0.5}
    RunRecord(place).samples(0, [row])


def gallery_of(folder):
    found = data_of(page_of(folder))["gallery"]
    return [column["name"] for column in found["columns"]], found["prompts"], found["note"]


def test_samples_are_of_the_smallest_seed_of_which_all_variants_have_some(tmp_path):
    """Prompts differ by seed, and one run kept no samples."""
    write_sweep(tmp_path, {"grpo": [0.5, 0.6, 0.7], "rloo": [0.5, 0.6, 0.7]})
    for seed in range(3):
        ask(tmp_path / f"grpo-{seed}", f"prompt of {seed}")
    for seed in (1, 2):
        ask(tmp_path / f"rloo-{seed}", f"prompt of {seed}")
    assert gallery_of(tmp_path) == (["grpo, seed 1", "rloo, seed 1"], ["prompt of 1"], "")


def test_without_a_shared_seed_prompts_may_be_shared_all_the_same(tmp_path):
    write_run(tmp_path / "a", [0.0, 0.5], seed=3)
    write_run(tmp_path / "b", [0.0, 0.5], seed=7, algorithm="rloo")
    for name in "ab":
        ask(tmp_path / name, "the same")
    assert gallery_of(tmp_path) == (["grpo, seed 3", "rloo, seed 7"], ["the same"], "")


def test_where_no_prompt_is_shared_or_a_variant_has_none_the_section_says_so(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5], "rloo": [0.6], "dapo": [0.7]})
    assert gallery_of(tmp_path) == ([], [], "")
    ask(tmp_path / "grpo-0", "one")
    assert gallery_of(tmp_path) == (["grpo, seed 0"], ["one"], "no samples of dapo, rloo")
    ask(tmp_path / "rloo-0", "another")
    assert gallery_of(tmp_path)[1:] == (
        [],
        "the variants have no prompt in common; no samples of dapo",
    )


def test_the_headline_claims_what_the_pairs_do(sweep, tmp_path):
    said = data_of(page_of(sweep))["headline"]
    highest = "grpo has the highest eval/accuracy: 0.810 [0.785, 0.835], n = 3."
    gaps = np.array(FINALS["grpo"]) - FINALS["rloo"]
    half = 4.302653 * gaps.std(ddof=1) / np.sqrt(3)
    edges = f"[{gaps.mean() - half:.3f}, {gaps.mean() + half:.3f}]"
    assert said == f"{highest} It beats rloo by {gaps.mean():.3f} {edges}."
    near = write_sweep(tmp_path, {"grpo": [0.8, 0.6, 0.7], "rloo": [0.71, 0.66, 0.72]})
    assert data_of(page_of(near))["headline"].endswith("It is not distinguishable from rloo.")


def test_an_axis_that_one_seed_lacks_is_not_drawn(tmp_path):
    """Its mean would be that of other seeds."""
    write_sweep(tmp_path, {"grpo": [0.8, 0.6]})
    timing = tmp_path / "grpo-1" / "timing.jsonl"
    timing.write_text(timing.read_text().replace("time/total", "time/other"))
    (variant,) = data_of(page_of(tmp_path))["variants"]
    x = variant["curves"]["eval/accuracy"]["x"]
    assert x["seconds"] is None and x["iterations"] == [0, 1]


def test_a_seed_has_places_of_its_own_where_they_are_not_those_of_the_mean(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.8, 0.6]})
    wordy(tmp_path / "grpo-1", 10)
    (variant,) = data_of(page_of(tmp_path))["variants"]
    curve = variant["curves"]["eval/accuracy"]
    assert [seed["x"] for seed in curve["seeds"]] == [{"tokens": [0, 640]}, {"tokens": [0, 6400]}]
    assert curve["x"]["tokens"] == [0, 3520] and curve["x"]["samples"] == [0, 64]


def test_judged_runs_are_drawn_beside_their_band(tmp_path):
    for seed in range(10):
        write_run(tmp_path / "old" / str(seed), [0.0, 0.5 + 0.01 * seed], seed=seed)
    kept = group_runs([read(path) for path in find([tmp_path / "old"])])
    expected_bands.save(tmp_path / "kept", kept, "eval/accuracy")
    write_run(tmp_path / "new" / "low", [0.0, 0.2], seed=10)
    asked = Request(experiment=expected_bands.load(tmp_path / "kept"))
    runs = [read(path) for path in find([tmp_path / "new"])]
    (shown,) = data_of(write_report(compare(runs, asked), ""))["bands"]["variants"]
    (run,) = shown["runs"]
    assert (shown["n"], shown["x"], shown["low"][0]) == (10, [0, 1], None)
    assert (run["y"], run["outside"], run["holds"]) == ([0, 0.2], [False, True], False)


def test_what_a_model_wrote_stays_text(sweep):
    page = page_of(sweep)
    assert EVIL not in page and "a &lt;title&gt;" in page
    assert page.count("</script>") == 2


def test_a_title_is_text_also_where_it_reads_like_a_mark_of_the_page():
    page = write_page(make_empty_payload("nothing yet"), "{{script}} {{data}} {{connect}}")
    assert page.count("<h1>{{script}} {{data}} {{connect}}</h1>") == 1
    assert page.count('"nothing yet"') == 1


def test_nothing_is_fetched(sweep):
    page = page_of(sweep)
    assert "default-src 'none'" in page and "connect-src 'none'" in page
    assert not re.findall(r"(?:src|href)=[\"']?https?:|@import|url\(", page)


def test_pictures_are_cut_out_of_their_sheets(tmp_path):
    place = write_run(tmp_path / "run", [0.1, 0.2])
    shades = [torch.full((8, 8, 3), shade, dtype=torch.uint8) for shade in (0, 90, 180)]
    rows = [{"kind": "eval", "prompt": "red", "output": x, "reward": None} for x in shades]
    RunRecord(place).samples(0, rows)
    (column,) = data_of(page_of(tmp_path))["gallery"]["columns"]
    cells = column["cells"][0]["0"]
    assert [shade_of(cell["picture"]) for cell in cells] == [0, 90, 180]


def shade_of(url):
    import base64
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert image.size == (8, 8)
    return image.convert("L").getpixel((3, 3))


def test_out_writes_everything_with_where_it_comes_from(sweep, tmp_path):
    main([str(sweep), f"out={tmp_path}"])
    written = {path.name for path in tmp_path.iterdir()}
    tables = {
        f"{n}.{kind}"
        for n in ("scores", "differences", "configuration", "curves")
        for kind in ("md", "csv", "tex")
    }
    assert written == tables | {"report.html", "curves.pdf", "scores.pdf"}
    for name in written - {"curves.pdf", "scores.pdf"}:
        assert "6 runs, seeds 0, 1, 2" in (tmp_path / name).read_text()
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_each_sweep_has_files_of_its_selection(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        write_run(tmp_path / name / "run", [0.0, 0.5], seed=seed)
        best = Candidate(name=f"best of {name}", mean=0.5, seeds=[seed], without=[])
        chosen = {"metric": "eval/accuracy", "candidates": [best], "silent": [], "fresh": []}
        selection.write(tmp_path / name, selection.Selection(**chosen, overrides=[]))
    out = tmp_path / "out"
    main([str(tmp_path / "a"), str(tmp_path / "b"), f"out={out}"])
    assert "best of a" in (out / "selection.md").read_text()
    assert "best of b" in (out / "selection_2.md").read_text()
    main([str(tmp_path / "a"), f"out={out}"])
    assert (out / "selection.md").exists() and not (out / "selection_2.md").exists()


def test_the_first_sample_is_one_on_which_the_variants_differ(tmp_path):
    """By reward, then by text; the others follow."""
    prompts = ("same", "said otherwise", "scored otherwise")
    for name in ("grpo", "rloo"):
        place = write_run(tmp_path / name, [0.0, 0.2], algorithm=name)
        rows = [
            {"kind": "eval", "prompt": prompt, "output": "x", "reward": 0.5} for prompt in prompts
        ]
        rows[1]["output"] = name
        rows[2]["reward"] = 1.0 if name == "rloo" else 0.0
        RunRecord(place).samples(0, rows)
    found = data_of(page_of(tmp_path))["gallery"]
    assert found["prompts"] == ["scored otherwise", "said otherwise", "same"]
