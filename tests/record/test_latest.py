"""runs/latest and runs/sweeps/latest: links that are replaced atomically, and never other files."""

from pathlib import Path

from tandem.record.latest import follow_link, home_of_runs, point_latest


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_the_link_leads_to_the_last_one(tmp_path):
    runs = tmp_path / "runs"
    first, second = make_folder(runs / "2026-01-31/a"), make_folder(runs / "2026-02-01/b")
    for run in (first, second):
        point_latest(run, runs)
        assert (runs / "latest").resolve() == run
    assert not (runs / "latest").readlink().is_absolute()  # the folder may be moved
    assert [path.name for path in runs.iterdir() if path.name.startswith(".")] == []


def test_what_somebody_else_named_so_stays(tmp_path):
    run = make_folder(tmp_path / "runs/a")
    (tmp_path / "runs/latest").write_text("mine")
    point_latest(run, tmp_path / "runs")
    assert (tmp_path / "runs/latest").read_text() == "mine"


def test_a_run_elsewhere_is_not_linked(tmp_path):
    make_folder(tmp_path / "runs")
    point_latest(make_folder(tmp_path / "elsewhere"), tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []
    assert home_of_runs(tmp_path / "elsewhere") is None
    assert home_of_runs(tmp_path / "runs/2026/a") == tmp_path / "runs"
    assert home_of_runs(tmp_path / "runs/sweeps/seed/seed=0") is None  # the sweep is linked


def test_a_link_that_is_used_is_followed_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = make_folder(tmp_path / "runs/a"), make_folder(tmp_path / "runs/b")
    point_latest(first, tmp_path / "runs")
    meant = follow_link(Path("runs/latest"))
    point_latest(second, tmp_path / "runs")
    assert meant == Path("runs/a")
    assert follow_link(Path("runs/b")) == Path("runs/b")
