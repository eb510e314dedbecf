"""W&B's offline files, read by its own command."""

import json
import subprocess
import sys
from pathlib import Path


def inspect(folder: Path) -> list[dict]:
    """The records of the only offline run of a run directory."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def of_type(name: str, records: list[dict]) -> list[dict]:
    return [record[name] for record in records if record["type"] == name]


def tables(name: str, records: list[dict]) -> list[list[dict]]:
    """The rows of each table of this name, in the order in which they were logged."""
    found = [
        json.loads(Path(entry["local_path"]).read_text())
        for artifact in of_type("artifact", records)
        for entry in artifact["manifest"]["contents"]
        if entry["path"] == f"{name}.table.json"
    ]
    return [[dict(zip(one["columns"], row, strict=True)) for row in one["data"]] for one in found]
