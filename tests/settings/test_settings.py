"""Facts about configuration keys, as every part that uses them gets them."""

import pytest
from omegaconf import OmegaConf

from tandem.config import ConfigError, resume_config
from tandem.config.experiments import shared_overrides
from tandem.config.resume import CHOSEN
from tandem.record import labels
from tandem.record.reading.facts import facts_of
from tandem.settings.keys import Key
from tandem.settings.settings import COMPONENTS, KEYS, Settings, key_of
from tandem.types import SEGMENTS

PLACES = ("run_dir", "sweep_dir", "cache_dir", "overrides", "choices", "plugins", "logger")


def test_what_lies_below_a_key_matters_as_it_does_unless_it_says_otherwise():
    assert key_of("optimizer.lr") == key_of("optimizer")
    assert not key_of("trainer.devices").compared
    assert key_of("trainer.precision").compared
    assert key_of("model/ema") == key_of("model")


@pytest.mark.parametrize("segment", SEGMENTS)
def test_a_segment_of_a_chain_is_as_a_sample_of_one_kind(segment):
    for key in ("rollout", "rollout.max_rows", "rollout.engine.url", "model.row_budget"):
        group, dot, own = key.partition(".")
        assert key_of(f"{group}.{segment}{dot}{own}") == key_of(key)


def test_what_is_computed_at_once_may_change_and_makes_no_other_variant():
    for key in ("max_tokens_per_microbatch", "rollout.max_rows", "model.logit_budget"):
        assert key_of(key).resumable and not key_of(key).compared
    assert not key_of("rollout.temperature").resumable
    assert not key_of("rollout.engine.cuda_graphs").resumable  # of another part


def test_facts_are_said_of_keys_that_there_are():
    tops = {name.partition(".")[0] for name in KEYS}
    assert tops <= {*Settings.__dataclass_fields__, *COMPONENTS, "hydra"}


@pytest.mark.parametrize("key", PLACES)
def test_where_a_run_lies_matters_for_nothing(key):
    assert not key_of(key).weights and not key_of(key).compared and not key_of(key).mirrored


def test_one_fact_reaches_every_reader(tmp_path, monkeypatch, request):
    """Resuming, comparison, mirrors and sharing all follow a changed declaration."""
    config = {"group_size": 8, "plugins": [], "choices": dict.fromkeys(CHOSEN, "x"), "replaced": {}}
    config |= {group: {"_target_": "x"} for group in CHOSEN}
    config["overrides"] = ["group_size=4"]
    OmegaConf.save(config, tmp_path / "config.yaml")
    run = type("Run", (), {"config": config, "seed": 0})
    with pytest.raises(ConfigError, match=r"^group_size=2: a run that is resumed keeps it"):
        resume_config(tmp_path, ["group_size=2"])
    assert "group_size" in facts_of(run) and "group_size=4" in labels.group(config)
    other = Key(resumable=True, shared=True, compared=False, mirrored=False)
    monkeypatch.setitem(KEYS, "group_size", other)
    key_of.cache_clear()
    request.addfinalizer(key_of.cache_clear)
    assert resume_config(tmp_path, ["group_size=2"]).group_size == 2
    assert "group_size" not in facts_of(run) and "group_size" not in labels.group(config)
    assert "group_size" not in labels.settings(config)
    assert shared_overrides(["group_size=2", "iterations=3"]) == ["group_size=2"]
