"""Former names of keys, groups, options and parts: refused with the current name, or read as it."""

from pathlib import Path
from typing import Literal

import pytest
from omegaconf import OmegaConf

from tandem.compare.expected_bands import load
from tandem.config import ConfigError, check, compose
from tandem.config.binding import bind, convert
from tandem.config.overrides import parse
from tandem.config.plain import iterate_leaves, to_plain
from tandem.config.resume import resume_config
from tandem.config.targets import resolve
from tandem.record.foreign import read_config
from tandem.settings.renamed import RENAMED, present_config, present_name, present_override

ROOT = Path(__file__).parents[2]
PARTS = {old: new for old, new in RENAMED.items() if old.startswith("tandem.")}
OPTIONS = {old: new for old, new in RENAMED.items() if "=" in old}
KEYS = {old: new for old, new in RENAMED.items() if old[0] != "$" and old not in {*PARTS, *OPTIONS}}
CRD = ["model=tiny_flow", "algorithm=crd"]


@pytest.mark.parametrize("former", KEYS)
def test_a_former_key_is_answered_with_its_present_name(former):
    with pytest.raises(ConfigError) as refused:
        parse([f"{former}.x=1"])
    assert str(refused.value) == f"{former}.x=1 was renamed to {KEYS[former]}.x=1"


@pytest.mark.parametrize("former", OPTIONS)
def test_a_former_value_is_answered_with_its_present_name(former):
    with pytest.raises(ConfigError) as refused:
        parse([former])
    assert str(refused.value) == f"{former} was renamed to {OPTIONS[former]}"


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("algorithm/proximal=bypass", "algorithm/old_logprobs=rollout"),
        ("algorithm.evidence=elbo", "algorithm.objective=denoising"),
        ("+algorithm/snapshots@algorithm.snapshots.x=ramp", "+algorithm/ema@algorithm.ema.x=ramp"),
        ("~algorithm.snapshots.fast", "~algorithm.ema.fast"),
        ("algorithm.regression.x=a/b", "algorithm.timestep_sampling.x=a/b"),
        ("data.path=a/algorithm.evidence", "data.path=a/algorithm.evidence"),
    ],
)
def test_a_word_is_renamed_as_a_whole(former, present):
    assert present_override(former) == present_override(present) == present


def test_every_present_key_is_one_of_today():
    others = ["model=tiny_flow", "algorithm=tdm_r1"], ["model=tiny_masked"]
    composed = [compose(words) for words in (CRD, *others)]
    keys = {key for cfg in composed for key, _ in iterate_leaves(cfg)} | {"algorithm.objective."}
    for present in KEYS.values():
        assert any(f"{key}.".startswith(f"{present}.") for key in keys), present


def test_a_file_with_a_former_key_or_value_is_answered_too():
    node = {"_target_": "tandem.algorithm.algorithm.Algorithm", "evidence": "any"}
    with pytest.raises(ConfigError, match=r"^algorithm\.evidence was renamed to \S+objective$"):
        bind(node, "algorithm")
    with pytest.raises(
        ConfigError, match=r"^algorithm\.objective=elbo was renamed to \S+=denoising$"
    ):
        convert("elbo", Literal["denoising"], "algorithm.objective")


def test_a_former_resolver_is_answered_with_its_present_name():
    with pytest.raises(ConfigError, match=r"was renamed to \$\{max:\}$"):
        to_plain(OmegaConf.create({"guards": {"ratio": "${most:1,2}"}}))


# A recorded configuration -> its current form.
RECORDED = {
    "algorithm": {
        "_target_": "tandem.algorithm.Algorithm",
        "evidence": "elbo",
        "collect": {"_target_": "tandem.collect.on_policy", "_partial_": True},
        "proximal": {"_target_": "tandem.corrections.recomputed", "_partial_": True},
        "snapshots": {"old": {"_target_": "tandem.dynamics.decays.Following", "every": "update"}},
    },
    "dynamics": {"clip_unit": 0.5, "horizon": 10},
    "overrides": ["algorithm/truncated=mask", "seed=3"],
    "replaced": {"dropped": ["algorithm.regression.count=2"], "kept": [], "off": []},
}
TODAY = {
    "algorithm": {
        "_target_": "tandem.algorithm.algorithm.Algorithm",
        "objective": "denoising",
        "sampling_strategy": {"_target_": "tandem.training.collect.on_policy", "_partial_": True},
        "old_logprobs": {"_target_": "tandem.losses.importance.recompute", "_partial_": True},
        "ema": {"old": {"_target_": "tandem.dynamics.decays.EmaSchedule", "every": "update"}},
    },
    "dynamics": {"clip_scale": 0.5, "horizon": 10},
    "overrides": ["algorithm/truncation_handling=mask", "seed=3"],
    "replaced": {"dropped": ["algorithm.timestep_sampling.count=2"], "kept": [], "off": []},
}


def test_a_recorded_configuration_is_read_under_present_names(tmp_path):
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(RECORDED)))
    assert read_config(tmp_path / "config.yaml") == present_config(TODAY) == TODAY


def test_a_configuration_of_today_is_read_as_it_is():
    today = to_plain(compose(CRD))
    assert present_config(today) == today


def test_a_run_recorded_under_former_names_goes_on(tmp_path):
    today = compose(["algorithm=dapo", "seed=3"])
    former = OmegaConf.to_container(today, resolve=True)
    numbers = former["algorithm"]
    for old in ("correction", "proximal", "collect", "truncated"):
        numbers[old] = numbers.pop(KEYS[f"algorithm.{old}"].rpartition(".")[2])
    numbers["collect"]["_target_"] = "tandem.collect.dynamic_sampling"
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(former)))
    assert to_plain(resume_config(tmp_path, ["iterations=7"]).algorithm) == to_plain(
        today.algorithm
    )


@pytest.mark.parametrize("model", ["tiny_lm", "tiny_masked", "tiny_flow", "tiny_chain"])
def test_a_run_recorded_with_the_name_of_its_dynamics_goes_on(tmp_path, model):
    """The kind of the steps of a text was that name; for pictures no kind is read."""
    former = OmegaConf.to_container(compose([f"model={model}"]), resolve=True)
    former["dynamics"].pop("kind", None)
    former["dynamics"]["name"] = former["choices"]["dynamics"]
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(former)))
    check(resume_config(tmp_path, []))


def test_a_run_recorded_with_a_seed_of_its_model_goes_on(tmp_path):
    today = OmegaConf.to_container(compose(["model=tiny_chain", "seed=3"]), resolve=True)
    former = present_config(today)
    former["model"] |= {name: former["model"][name] | {"seed": 3} for name in ("text", "picture")}
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(former)))
    assert to_plain(resume_config(tmp_path, ["iterations=7"]).model) == today["model"]
    assert present_config({"model": {"seed": 3, "path": "a"}}) == {"model": {"path": "a"}}


@pytest.mark.parametrize("study", ["embedded_language", "embedded_flow"])
def test_the_expected_bands_of_a_study_name_parts_and_keys_of_today(study):
    folder = ROOT / "experiments" / study
    for variant in load(folder).variants:
        assert [key for key in variant.facts if present_name(key) != key] == []
        for key, value in variant.facts.items():
            if key.endswith("_target_"):
                assert resolve(value, key), key
