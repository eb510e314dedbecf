"""The page holds what the tables say, fetches nothing, and runs nothing of what it shows."""

import json
import re

import pytest
import torch
from written_runs import write_run, write_sweep

from tandem.compare.__main__ import Asked, compare, main
from tandem.compare.report import report
from tandem.compare.runs import find, read
from tandem.record.run_record import RunRecord

EVIL = "</script><img src=x onerror=alert(1)>"


def page_of(folder):
    runs = [read(path) for path in find([folder])]
    return report(compare(runs, Asked()), "a <title>")


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, {"grpo": [0.8, 0.82, 0.81], "rloo": [0.5, 0.53, 0.51]})
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
    curve = rloo["curves"]["eval/accuracy"]["samples"]
    assert [point[0] for point in curve["mean"]] == [0, 64]
    assert len(curve["seeds"]) == 3
    assert data["verdicts"][0] == {"text": "grpo beats rloo", "claim": True}
    assert data["axes"] == ["iterations", "samples", "tokens", "seconds", "cpu_seconds"]


def test_completions_lie_beside_each_other_by_prompt_and_iteration(sweep):
    gallery = data_of(page_of(sweep))["gallery"]
    assert (gallery["prompts"], gallery["iterations"]) == (["sort ba>"], [0, 1])
    assert [column["name"] for column in gallery["columns"]] == ["grpo, seed 0", "rloo, seed 0"]
    assert gallery["columns"][0]["cells"][0]["1"] == [{"text": EVIL, "reward": 0.5}]


def test_what_a_model_wrote_stays_text(sweep):
    page = page_of(sweep)
    assert EVIL not in page and "a &lt;title&gt;" in page
    assert page.count("</script>") == 2


def test_nothing_is_fetched(sweep):
    page = page_of(sweep)
    assert "default-src 'none'" in page
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
