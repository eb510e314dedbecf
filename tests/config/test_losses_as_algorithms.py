"""A loss without a preset is combined with the parts that losses with its facts take."""

import pytest

from tandem.config import ConfigError, check, compose

PAIRS, FLOW = ("data=sort_pairs",), ("model=tiny_flow",)


@pytest.mark.parametrize(
    ("loss", "beside", "parts"),
    [
        ("dpo_hinge", PAIRS, {"advantage": "preferred", "sampling_strategy": "preference_pairs"}),
        ("dpo_reference_free", PAIRS, {"advantage": "preferred"}),
        ("dppo_kl", (), {"weights": "token_mean", "importance_sampling": "none"}),
        ("dgpo_fast", FLOW, {"importance_sampling": "none"}),
        ("dro", (), {"advantage": "group_relative", "weights": "sequence_mean"}),
    ],
)
def test_it_is_admitted_with_them(loss, beside, parts):
    cfg = compose([f"algorithm={loss}", *beside])
    check(cfg)
    for group, part in parts.items():
        assert cfg.algorithm[group]._target_.endswith(f".{part}")
    assert cfg.choices.algorithm == loss


def test_distillation_asks_for_its_teachers_and_nothing_else():
    with pytest.raises(ConfigError, match=r"^algorithm\.teachers\.folders is not set"):
        check(compose(["algorithm=distillation", *FLOW]))


def test_a_loss_that_draws_steps_by_lot_names_what_rows_of_data_lack():
    with pytest.raises(ConfigError, match=r"^algorithm/loss=clip_cov draws .* were not sampled"):
        check(compose(["algorithm=simpo", "algorithm/loss=clip_cov", *PAIRS]))


def test_a_rollout_of_the_other_kind_is_told_by_its_own_name():
    with pytest.raises(ConfigError, match=r"^rollout=local: model=tiny_flow sets its own"):
        compose([*FLOW, "algorithm=flow_grpo", "rollout=local"])


MATCHING = """
from tandem import register_policy_loss

@register_policy_loss(reads={"real_x0"}, networks={"fake"}, matches=True, taught=True)
def led(batch): return (batch.networks["fake"].x0 - batch.x0).square().mean(-1)

@register_policy_loss(networks={"fake", "surrogate"}, matches=True)
def ranked(batch): return (batch.networks["surrogate"].x0 - batch.x0).square().mean(-1)
"""


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize(("loss", "query"), [("led", "trajectory"), ("ranked", "reverse")])
def test_a_loss_of_ones_own_that_matches_is_admitted_as_an_algorithm(plugin, loss, query):
    plugin(MATCHING)
    cfg = compose(["plugins=[wrong]", *FLOW, f"algorithm={loss}"])
    check(cfg)
    assert cfg.choices.algorithm == loss and cfg.algorithm.loss._target_ == f"wrong.{loss}"
    assert cfg.algorithm.query._target_.endswith(f".{query}")
