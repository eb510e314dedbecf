import subprocess
from pathlib import Path

import pytest

from tandem.record.manifest import new_manifest, start

ROOT = Path(__file__).parents[2]


def test_a_start_says_what_ran(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "swordfish")
    said = start(["train.py", "seed=1", "note=a swordfish b"])
    assert said["command"] == "train.py seed=1 'note=a <redacted> b'"
    spaced = start(["train.py", "logger.api_key=a secret\nof two lines", "--password", "of one"])
    assert spaced["command"] == "train.py 'logger.api_key=<redacted>' --password '<redacted>'"
    assert said["packages"]["torch"].startswith("2.")
    assert said["hardware"]["cores"] >= 1


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_a_start_names_the_commit():
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert start([])["code"]["commit"] == head.stdout.strip()


def test_a_start_names_the_version_of_each_plugin():
    assert start([], [("my_loss", "ab" * 32)])["code"]["plugins"] == {"my_loss": "ab" * 32}
    assert start([])["code"]["plugins"] == {}


def test_runs_have_ids_of_their_own():
    assert new_manifest(0)["id"] != new_manifest(0)["id"]
