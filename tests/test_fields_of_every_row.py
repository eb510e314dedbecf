"""Fields that every row has are there for each part that reads them, whatever the objective."""

import pytest
from written_plugin import metrics_of

from tandem.config import ConfigError, check, compose

pytestmark = pytest.mark.usefixtures("unregistered")

READERS = """
import torch
from tandem import register_adv_estimator, register_policy_loss, register_truncation, rng
from tandem.advantages.group import centre
from tandem.dynamics.regression import energy

@register_adv_estimator(compares="group")
def plain(scores, rollout):
    return centre(scores, rollout.group)[:, None] * rollout.mask

@register_adv_estimator(compares="group", reads={"version_gap"})
def aged(scores, rollout):
    return plain(scores, rollout) * 0.9 ** rollout.version_gap

@register_truncation(reads={"version_gap"})
def young(scores, rollout):
    assert not rollout.version_gap.any()
    return scores, rollout

def kept(batch):
    assert len(batch.key.unique()) == len(batch.key)
    return (rng.uniform(batch.key) < 0.5)[:, None]

@register_policy_loss(reads={"key"})
def of_likelihoods(batch):
    return -batch.logp * batch.advantages * kept(batch)

@register_policy_loss(reads={"version_gap"})
def aged_likelihoods(batch):
    return -batch.logp * batch.advantages * 0.9 ** batch.version_gap

@register_policy_loss(reads={"key", "version_gap"}, on_errors=True)
def of_errors(batch):
    return energy(batch.error) * batch.advantages * kept(batch) * 0.9 ** batch.version_gap

@register_policy_loss(
    reads={"key", "version_gap", "real_x0"}, networks={"fake"}, matches=True, taught=True
)
def of_predictions(batch):
    gap = (batch.x0 - batch.real_x0).square().mean(-1)
    return gap * kept(batch) * 0.9 ** batch.version_gap

@register_policy_loss(reads={"key", "version_gap"}, on_errors=True, taught=True)
def of_a_network(batch):
    return energy(batch.error) * kept(batch) * 0.9 ** batch.version_gap
"""


UNSURE = """
from tandem import register_adv_estimator
from tandem.contracts import register_kl_gate, register_truncation

@register_adv_estimator(reads={"entropy"})
def unsure(scores, rollout):
    return scores.total[:, None] * rollout.entropy * rollout.mask

@register_truncation(reads={"entropy"})
def lost(scores, rollout):
    return scores, rollout

@register_kl_gate(reads={"entropy"})
def open_gate(scores, rollout):
    return rollout.entropy.sum(1) > 1
"""


@pytest.mark.parametrize(
    "part", ["advantage=unsure", "truncation_handling=lost", "kl/gate=open_gate"]
)
def test_the_entropy_that_an_engine_does_not_report_is_refused_to_its_readers(plugin, part):
    plugin(UNSURE)
    words = ["plugins=[wrong]", "~recipe", "algorithm.kl.coef=0.1", f"algorithm/{part}"]
    check(compose(words))
    engine = ["rollout=vllm_server", "rollout.engine.url=http://127.0.0.1:9"]
    with pytest.raises(ConfigError, match=rf"^algorithm/{part} needs the entropy of the sa"):
        check(compose([*words, *engine]))


def test_the_age_of_fresh_rows_is_0_for_an_advantage(plugin, tmp_path):
    words = plugin(READERS)
    plain, aged = (
        metrics_of(words, f"algorithm/advantage={name}", f"run_dir={tmp_path}/{name}")
        for name in ("plain", "aged")
    )
    assert {name: aged[name] for name in plain} == plain


def test_the_age_of_fresh_rows_is_0_for_a_truncation_handling(plugin):
    words = plugin(READERS)
    assert metrics_of(words, "algorithm/truncation_handling=young")["optim/updates"] == 1


@pytest.mark.parametrize(
    "words",
    [
        "algorithm=awm algorithm/loss=of_likelihoods",
        "algorithm=awm algorithm/loss=aged_likelihoods",
        "algorithm=nft algorithm/loss=of_errors",
        "algorithm=dmd2 algorithm.policy_every=1 algorithm/loss=of_predictions",
    ],
)
def test_losses_on_finished_pictures_read_keys_and_ages(plugin, words):
    given = plugin(READERS, reward="reward=colour_share model=tiny_flow rollout.steps=4")
    given = [word for word in given if not word.startswith("data.")]
    assert metrics_of(given, *words.split())["optim/updates"] == 1


def test_losses_of_networks_beside_the_policy_read_keys_and_ages(plugin):
    loss = "{_target_: wrong.of_a_network, _partial_: true}"
    mine = f"defaults: [dmd2, _self_]\npolicy_every: 1\nnetworks: {{fake: {{loss: {loss}}}}}"
    given = plugin(
        READERS, reward="reward=colour_share model=tiny_flow rollout.steps=4", algorithm__mine=mine
    )
    given = [word for word in given if not word.startswith("data.")]
    assert metrics_of(given, "algorithm=mine")["optim/updates"] == 1
