"""The line of provenance under every figure and table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata

from tandem.record.reading.facts import facts_of
from tandem.record.reading.runs import Run


def provenance(runs: Sequence[Run]) -> str:
    """Code, configurations and seeds in one line, for every figure and table."""
    seeds = sorted({run.seed for run in runs})
    said = f"{len(runs)} runs, seeds {', '.join(map(str, seeds))}"
    return f"{code_of(runs)}; configurations {fingerprint(runs)}; {said}"


def code_of(runs: Sequence[Run]) -> str:
    """The version of this package, and the commits of all starts of the runs."""
    ran = sorted({code for run in runs for code in run.code or ("unknown code",)})
    return f"Tandem {metadata.version('tandem')} {', '.join(ran)}"


def fingerprint(runs: Sequence[Run]) -> str:
    """A hash of the runs' configurations without seeds and folders."""
    facts = sorted({json.dumps(facts_of(run), sort_keys=True, default=str) for run in runs})
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
