"""Files are read once per process and merged as Hydra merges them."""

import importlib.util
import os

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.types import RunMode
from omegaconf import OmegaConf

from tandem.config import ConfigError, compose, files, loading
from tandem.config.composition import conf_folder, make_loader
from tandem.config.contents import merge

LINES = (
    [],
    ["model=tiny_flow", "+algorithm/ema@algorithm.ema.mine=ramp"],
    ["model=sd3_5_medium", "algorithm=mix_grpo", "~recipe", "optimizer=adam"],
    ["logger=[wandb,csv]", "reward=[length,format]", "sweep=[seeds]"],
)


def hydras_own_list():
    """A fresh copy of Hydra's installed module."""
    found = importlib.util.find_spec(loading.hydras_list.__name__)
    fresh = importlib.util.module_from_spec(found)
    found.loader.exec_module(fresh)
    return fresh


@pytest.mark.parametrize("choices", LINES, ids=" ".join)
def test_choices_compose_to_what_hydra_composes(choices, monkeypatch):
    """The oracle is Hydra's own loader, with its own reading, merging and list."""
    ours = make_loader().compose(choices)
    name = "_create_interpolation_map"
    monkeypatch.setattr(loading.hydras_list, name, getattr(hydras_own_list(), name))
    path = create_config_search_path(str(conf_folder()))
    theirs = ConfigLoaderImpl(path).load_configuration("config", choices, run_mode=RunMode.RUN)
    assert ours.choices == OmegaConf.to_container(theirs.hydra.runtime.choices)
    theirs = OmegaConf.to_container(theirs)
    del theirs["hydra"]
    merge(whole := {}, theirs)  # ~ is Tandem's own syntax
    assert OmegaConf.to_container(ours.cfg) == whole


def test_a_second_composition_reads_no_file(monkeypatch):
    compose(["algorithm=rloo"])
    monkeypatch.setattr(files.yaml, "load", None)
    assert compose(["algorithm=rloo", "seed=4"]).seed == 4


def test_a_file_that_changed_is_read_again(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    folder = tmp_path / "mine" / "conf" / "experiment"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for seed in (1, 22):
        (folder / "study.yaml").write_text(f"# @package _global_\nseed: {seed}\n")
        assert compose(["plugins=[mine]", "experiment=study"]).seed == seed
    (folder / "study.yaml").write_text("# @package _global_\nseed: 1\nseed: 2\n")
    os.utime(folder / "study.yaml", ns=(1, 1))
    with pytest.raises(ConfigError, match=r"study.yaml, line 3: found duplicate key seed"):
        compose(["plugins=[mine]", "experiment=study"])


def test_one_configuration_is_never_another():
    first = compose()
    first.algorithm.loss.clip_low = first.iterations = 7
    assert compose().algorithm.loss.clip_low != 7


def test_what_is_left_open_does_not_beat_what_is_given():
    whole = {"path": "here", "node": {"a": 1}, "list": [1, 2], "none": None}
    merge(whole, {"path": "???", "node": {"b": "???"}, "list": [3], "none": {"c": 1}})
    assert whole == {"path": "here", "node": {"a": 1, "b": "???"}, "list": [3], "none": {"c": 1}}


def test_a_tilde_deletes_what_stands_there():
    whole = {"a": {"b": 1, "c": 2}, "d": 3}
    merge(whole, {"a": {"b": "~"}, "d": "~", "e": "~"})
    assert whole == {"a": {"c": 2}}
