"""The report on W&B: its panels, its runs, our tables in it, and its error messages."""

import json
import shutil

import pytest
import wandb
from wandb_server import serving
from written_runs import write_run, write_sweep

from tandem.compare.__main__ import main
from tandem.compare.comparison import Request, compare
from tandem.compare.report import wandb_report
from tandem.compare.report.wandb_report import Place
from tandem.record.reading.provenance import provenance
from tandem.record.reading.runs import find, read

wr = pytest.importorskip("wandb_workspaces.reports.v2")

MIRRORED = {"wandb": {"project": "tandem", "entity": None}}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    finals = {"grpo": [0.8, 0.82, 0.81], "rloo": [0.5, 0.53, 0.51]}
    return write_sweep(folder, finals, logger=MIRRORED)


@pytest.fixture
def nobody(tmp_path, monkeypatch):
    """A client without the user's settings or credentials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # where the client puts its own log
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()


def read_all(*places):
    return [read(path) for path in find(places)]


def build(*places, axis="iterations"):
    found = compare(read_all(*places), Request(axis=axis))
    return found, wandb_report.build_report(found, Place(entity="me", project="tandem"))


def test_each_variant_is_a_set_of_the_runs_that_w_and_b_knows_by_their_ids(sweep):
    _, report = build(sweep)
    (grid,) = [block for block in report.blocks if isinstance(block, wr.PanelGrid)]
    assert [runs.name for runs in grid.runsets] == ["grpo", "rloo"]
    for runs in grid.runsets:
        manifests = [sweep / f"{runs.name}-{seed}" / "manifest.json" for seed in range(3)]
        ids = [json.loads(path.read_text())["id"] for path in manifests]
        assert runs.filters == f"Metric('ID') in {ids}"
        assert (runs.entity, runs.project, runs.groupby) == ("me", "tandem", ["Group"])


def test_the_metric_is_drawn_on_every_axis_that_the_runs_have(sweep):
    _, report = build(sweep, axis="tokens")
    (grid,) = [block for block in report.blocks if isinstance(block, wr.PanelGrid)]
    axes = [panel.x for panel in grid.panels if panel.y == ["eval/accuracy"]]
    assert axes == ["tokens", "iteration", "samples", "time/total", "time/cpu"]
    assert [(panel.y, panel.x) for panel in grid.panels[5:]] == [(["reward/mean"], "tokens")]
    corners = {(panel.layout.x, panel.layout.y) for panel in grid.panels}
    assert len(corners) == len(grid.panels)


def test_seconds_are_drawn_where_weights_were_reached_if_the_runs_recorded_it(sweep, tmp_path):
    folder = shutil.copytree(sweep, tmp_path / "sweep")
    for log in folder.glob("*/timing.jsonl"):
        log.write_text(log.read_text().replace('"time/cpu"', '"time/reached": 1.0, "time/cpu"'))
    _, report = build(folder)
    (grid,) = [block for block in report.blocks if isinstance(block, wr.PanelGrid)]
    drawn = {panel.x for panel in grid.panels if panel.y == ["eval/accuracy"]}
    assert "time/reached" in drawn and "time/total" not in drawn


def test_steps_of_flows_are_their_tokens(tmp_path):
    folder = write_run(tmp_path / "flow", [0.0, 0.5], logger=MIRRORED)
    log = folder / "metrics.jsonl"
    log.write_text(log.read_text().replace('"tokens"', '"steps"'))
    _, report = build(folder)
    (grid,) = [block for block in report.blocks if isinstance(block, wr.PanelGrid)]
    assert "steps" in {panel.x for panel in grid.panels}


def test_it_says_what_our_tables_say_and_where_they_come_from(sweep):
    found, report = build(sweep)
    texts = [block.text for block in report.blocks if isinstance(block, wr.MarkdownBlock)]
    assert texts[0] == report.description
    assert texts[0].startswith("grpo has the highest eval/accuracy: 0.810 [0.785, 0.835], n = 3.")
    assert texts[1:-1] == [table.markdown() for table in found.tables]
    assert any("grpo beats rloo" in text for text in texts[1:-1])
    assert texts[-1] == provenance(found.runs)
    assert report.title == "eval accuracy of grpo, rloo"


def test_the_name_of_a_variant_is_no_markup_in_the_headline(tmp_path):
    for seed in range(2):
        write_run(tmp_path / str(seed), [0.0, 0.5], algorithm="<img src=x>[a](b:c)", seed=seed)
    _, report = build(tmp_path)
    headline = next(block for block in report.blocks if isinstance(block, wr.MarkdownBlock)).text
    assert headline.startswith("\\<img src=x>[a\\](b:c) has ")
    assert report.description == headline


def test_it_goes_where_the_runs_are_or_where_the_user_says(sweep, tmp_path):
    runs = read_all(sweep)
    assert wandb_report.place_of("true", runs) == Place(entity=None, project="tandem")
    assert wandb_report.place_of("lab/paper", runs) == Place(entity="lab", project="paper")
    other = {"wandb": {"project": "other", "entity": "lab"}}
    mixed = [*runs, read(write_run(tmp_path / "other", [0.0, 1.0], logger=other))]
    with pytest.raises(ValueError, match="the runs are in lab/other, tandem; set wandb=ENT"):
        wandb_report.place_of("true", mixed)


@pytest.mark.parametrize("option", ["yes", "lab/", "a/b/c", ""])
def test_another_place_is_none(sweep, option):
    with pytest.raises(ValueError, match="set wandb=true or wandb=ENTITY/PROJECT"):
        wandb_report.place_of(option, read_all(sweep))


def test_runs_without_a_mirror_are_sent_to_have_one(tmp_path, capsys, nobody):
    write_run(tmp_path / "run", [0.0, 1.0])
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "run"), "wandb=true"])
    assert "none of the runs is mirrored to W&B; start runs with logger=wandb" in (
        capsys.readouterr().err
    )


def test_without_a_key_it_is_one_line_that_names_the_login(sweep, capsys, nobody):
    with pytest.raises(SystemExit, match="2"):
        main([str(sweep), "wandb=true"])
    said = capsys.readouterr()
    assert "grpo beats rloo" in said.out
    assert said.err.splitlines()[-1] == (
        "wandb=true: not logged in to W&B; run `wandb login`, or set WANDB_API_KEY"
    )


@pytest.mark.system
def test_a_server_gets_it_and_the_user_its_address(sweep, capsys, nobody):
    with serving() as server:
        nobody.setenv("WANDB_BASE_URL", server.url)
        nobody.setenv("WANDB_API_KEY", "0" * 40)
        main([str(sweep), "wandb=true"])
        (report,) = server.reports
    address = f"{server.url}/me/tandem/reports/eval-accuracy-of-grpo,-rloo--view"
    assert capsys.readouterr().out.splitlines()[-1] == address
    assert (report["entityName"], report["projectName"]) == ("me", "tandem")
    spec = json.loads(report["spec"])
    kinds = [block["type"] for block in spec["blocks"]]
    assert kinds.count("panel-grid") == 1
    assert kinds.count("markdown-block") >= 5
    assert "differences of 1 pair" in report["spec"]


@pytest.mark.system
def test_a_server_that_refuses_is_one_line_too(sweep, capsys, nobody):
    with serving(refuses=True) as server:
        nobody.setenv("WANDB_BASE_URL", server.url)
        nobody.setenv("WANDB_API_KEY", "0" * 40)
        with pytest.raises(SystemExit, match="2"):
            main([str(sweep), "wandb=true"])
    assert capsys.readouterr().err.splitlines()[-1].startswith("wandb=true: W&B rejected the")
