"""The reports beside experiments equal those of this code on the archived runs."""

import json
import tarfile
from pathlib import Path

import pytest

from tandem.compare.bands import judge
from tandem.compare.comparison import Request, compare
from tandem.compare.expected_bands import load
from tandem.compare.report.payload import make_payload
from tandem.compare.report.write import HELD, PAGE
from tandem.record.reading.runs import find, read

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
AGAIN = "python -m tandem compare runs/{name} out=experiments/{name}/report writes it again"


@pytest.mark.parametrize("name", ["embedded_flow", "embedded_language"])
def test_a_committed_report_is_what_its_runs_say(tmp_path, name):
    folder = EXPERIMENTS / name
    with tarfile.open(folder / "runs.tar.gz") as kept:
        kept.extractall(tmp_path, filter="data")
    runs = [read(path) for path in find([tmp_path])]
    found = compare(runs, Request())
    for table in found.tables:
        committed = (folder / "report" / f"{table.name}.md").read_text()
        assert committed.startswith(table.markdown()), AGAIN.format(name=name)
    page, now = (
        json.loads(HELD.search((folder / "report" / PAGE).read_text())[1]),
        make_payload(found),
    )
    for part in ("headline", "warnings", "next", "meta"):
        assert page[part] == now[part], AGAIN.format(name=name)
    own = judge(runs[0], load(folder))
    assert (own.against, own.unknown) == ({}, [])  # the configuration is the expected one
