"""Settings of all tests: nothing is fetched, threads do not spin, reference values are fixtures."""

import functools
import gc
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads cost 20 times more when busy
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp()  # runs of tests are not runs of the user

import hydra
import omegaconf
import pytest
import torch
from hydra.core.config_store import ConfigStore

from tandem.config import help_topics
from tandem.config.registered import list_own_options
from tandem.contracts import REGISTERED
from tandem.record import jsonl, manifest, plots

pytest_plugins = ["reference_values", "durations", "written_plugin"]

torch.set_num_threads(1)
gc.disable()  # until collection ends: its objects stay, and scanning them takes longer


@pytest.hookimpl(optionalhook=True)  # there may be no xdist
def pytest_xdist_auto_num_workers() -> int:
    """One more than the number of cores: some tests wait for a process or a clock."""
    return 1 + os.cpu_count()


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first: a late one leaves the other cores idle."""
    long = {item.path for item in items if item.get_closest_marker("system")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000)  # with the default of 700 collecting takes a third longer
    gc.enable()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# A version and an interpolation, parsed; the comments in the source of a function; the checkout,
# of which git is asked three times.
SAME_IN_ALL_TESTS = (
    (hydra.version, "base_at_least"), (omegaconf.base, "parse"), (help_topics, "read_meanings"),
    (manifest, "_code"),
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _found_once() -> Iterator[None]:
    """What thousands of compositions and a thousand records ask for, and only read."""
    with pytest.MonkeyPatch.context() as patched:
        for module, name in SAME_IN_ALL_TESTS:
            patched.setattr(module, name, functools.cache(vars(module)[name]))
        yield


@pytest.fixture(scope="session", autouse=True)
def _unpainted() -> Iterator[None]:
    """Runs choose their panels without drawing them: drawing takes longer than a short run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "draw_run", _choose_panels)
        yield


def _choose_panels(run_dir: Path) -> None:
    plots.panels_of(jsonl.read(run_dir / "metrics.jsonl"))
    (run_dir / "curves.png").touch()


@pytest.fixture
def unregistered(monkeypatch):
    """Hide registered functions from the test, and the test's own from later ones."""
    before = dict(list_own_options())
    for key in before:
        del REGISTERED[key]
    yield
    for group, name in [*list_own_options()]:
        del REGISTERED[group, name]
        folder = ConfigStore.instance().repo
        for part in group.split("/"):
            folder = folder.get(part, {})
        folder.pop(f"{name}.yaml", None)
    REGISTERED.update(before)
