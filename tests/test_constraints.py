"""The versions that CI installs satisfy pyproject.toml, and admit no known vulnerability."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import constraints
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FIXED = {  # first version without a known vulnerability
    "ray": "2.54.0",  # CVE-2026-27482
    "pillow": "12.1.1",  # CVE-2026-25990
    "transformers": "5.5.0",  # CVE-2026-5241
    "lightning": "2.6.6",  # CVE-2026-58659
}
BOUNDED = [
    "torch", "hydra-core", "omegaconf", "transformers", "diffusers", "peft", "wandb", "torchao"
]  # fmt: skip


def every_requirement() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]


def test_every_dependency_is_pinned_to_a_version_that_it_admits():
    assert constraints.contradictions() == []


def test_what_is_installed_here_is_what_is_pinned():
    versions = constraints.requirements(constraints.EXTRA)
    assert len(versions) > 80
    missing = [line for line in constraints.stale(versions) if "not in constraints.txt" in line]
    assert missing == []


def test_a_pin_that_pyproject_no_longer_admits_is_named(tmp_path, monkeypatch):
    text = constraints.FILE.read_text()
    text = re.sub(r"^pillow==.*$", "pillow==11.0.0", text, flags=re.M)
    text = re.sub(r"^wandb==.*\n", "", text, flags=re.M)
    monkeypatch.setattr(constraints, "FILE", tmp_path / "constraints.txt")
    constraints.FILE.write_text(text)
    assert sorted(constraints.contradictions()) == [
        "pillow==11.0.0 of constraints.txt is not >=12.2",
        "wandb of pyproject.toml is not in constraints.txt",
    ]
    assert constraints.stale({"pillow": "13.0.0", "wandb": "0.31.0"}) == [
        "pillow==11.0.0: 13.0.0 is what a fresh install takes",
        "wandb: not in constraints.txt, and 0.31.0 is installed",
    ]


def test_a_build_of_torch_for_any_device_is_admitted():
    assert constraints.stale({"torch": "2.13.0+cpu"}) == []
    assert constraints.stale({"torch": "2.13.1+cu130"}) == []


def test_the_weekly_audit_reads_a_version_of_every_pin(tmp_path):
    """pip-audit ends with InvalidVersion for `2.13.*`."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/stale.yml").read_text())
    *steps, audit = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    file = re.search(r"pip_audit --requirement (\S+)", audit)[1]
    shutil.copy(constraints.FILE, tmp_path)
    for step in steps:
        if "pip install" not in step:
            subprocess.run(step, shell=True, cwd=tmp_path, check=True)
    lines = (tmp_path / file).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins.keys() == constraints.pinned_versions().keys()
    for name, version in pins.items():
        assert Version(version) in constraints.pinned_versions()[name]


def test_constraints_name_versions_and_no_addresses():
    lines = constraints.FILE.read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    names = [pin.partition("==")[0] for pin in pins]
    assert names == sorted({*names}) and len(pins) > 80
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.*!]+", pin) for pin in pins), pins


@pytest.mark.parametrize(("name", "version"), FIXED.items())
def test_no_version_with_a_known_hole_is_admitted(name, version):
    found = [one for one in every_requirement() if one.name == name]
    assert found
    before = re.sub(r"\d+$", lambda last: str(int(last[0]) - 1), version.removesuffix(".0"))
    assert not any(one.specifier.contains(before) for one in found if one.specifier)


@pytest.mark.parametrize("name", BOUNDED)
def test_what_tandem_reaches_into_has_an_upper_bound(name):
    (found,) = (one for one in every_requirement() if one.name == name)
    assert any(one.operator == "<" for one in found.specifier)


def test_the_environment_is_installed_from_the_constraints():
    installs = re.findall(r"pip install (?:\\\n|[^\n])*", (ROOT / "Makefile").read_text())
    pinned = [line for line in installs if "--constraint constraints.txt" in line]
    assert len(installs) - len(pinned) == 1  # the newest, to check the pins against


def install_of(target: str) -> str:
    """The recipe in the Makefile for a target's environment."""
    makefile = (ROOT / "Makefile").read_text()
    (needed,) = re.findall(rf"^{target}: \$\(VENV\)/(\w+)", makefile, re.M)
    return makefile.partition(f"\n$(VENV)/{needed}:")[2].partition("\n\n")[0]


def test_training_installs_nothing_that_only_tests_need():
    assert "--editable .\n" in install_of("train") and "[dev]" not in install_of("train")


def test_tests_are_installed_before_or_after_training():
    """The test environment is sufficient for training and marks that as done."""
    tests = install_of("test")
    assert '--editable ".[dev]"' in tests and "touch $(VENV)/trains $@" in tests
