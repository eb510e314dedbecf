"""The metrics of the losses, by hand and against the reference."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from records import coupled_batch
from torch.testing import assert_close

from tandem.contracts import facts_of
from tandem.losses.entropy_cov import kl_cov
from tandem.losses.policy import nll, ppo
from tandem.losses.preference import dpo
from tandem.losses.sequence import gmpo, gspo, gspo_token, mean_log_ratio, reshaped_ratio, vespo
from tandem.losses.soft_clip import cispo
from tandem.losses.trust_region import OffPolicyMask, binary_kl, dppo, dppo_pulled
from tandem.metrics import own_metrics, reduce_metrics
from tandem.types import CoupledBatch


def measure(loss, batch):
    return {
        k.removeprefix("actor/"): x for k, x in reduce_metrics(own_metrics(loss, batch)).items()
    }


def by_hand() -> CoupledBatch:
    """Three samples: ratios 2 and 2, good; 1/4 and 1, bad; 4, bad. The last row has no step."""
    ratio = torch.tensor([[2.0, 2.0], [0.25, 1.0], [4.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, True], [True, False], [False, False]])
    old = torch.where(mask, torch.tensor(0.125).double().log(), 0)
    advantages = torch.tensor([[1.0], [-1.0], [-1.0], [1.0]], dtype=torch.float64) * mask
    return CoupledBatch(
        logp=old + ratio.log(), old_logp=old, behaviour_logp=old, advantages=advantages,
        mask=mask, group=torch.arange(4),
    )  # fmt: skip


def test_a_demonstration_has_an_accuracy_where_the_policy_knows_its_likeliest_step():
    batch = by_hand()
    assert measure(nll, batch) == {}
    known = replace(batch, likeliest=(batch.logp > batch.old_logp).double())
    assert measure(nll, known) == pytest.approx({"token_accuracy": 3 / 5})


@pytest.mark.parametrize("loss", [gspo, gspo_token])
def test_gspo_counts_samples(loss):
    assert measure(partial(loss, clip_low=0.2, clip_high=0.5), by_hand()) == pytest.approx(
        {
            "seq_clip_frac": 2 / 3,
            "seq_clip_frac_low": 1 / 3,
            "seq_clip_frac_high": 1 / 3,
            "seq_ratio_mean": (2 + 0.5 + 4) / 3,
            "seq_ratio_min": 0.5,
            "seq_ratio_max": 4.0,
        }
    )


def test_gmpo_counts_steps_in_log_space():
    got = measure(partial(gmpo, clip_low=1.0, clip_high=0.5), by_hand())
    assert got["clip_frac"] == pytest.approx(3 / 5)
    assert got["clip_frac_low"] == pytest.approx(1 / 5)
    assert got["clip_frac_high"] == pytest.approx(2 / 5)
    assert got["seq_ratio_max"] == pytest.approx(4.0)


def test_cispo_counts_ratios_above_the_cap():
    assert measure(partial(cispo, ratio_max=1.5), by_hand()) == {"ratio_capped": 3 / 5}


def test_dppo_counts_what_it_masks_and_what_it_caps():
    # Probabilities move from 1/8: good by +1/8 twice, bad by -3/32 and by 0, bad by +3/8.
    got = measure(partial(dppo, ratio_max=3.0), by_hand())
    assert got == {"dppo_masked": 0.0, "ratio_capped": 1 / 5}
    # In nats: 0.0482 twice, 0.0842 and 0, and the last one moved against its advantage.
    for bound, masked in {0.05: 1 / 5, 0.048: 3 / 5}.items():
        too_far = partial(binary_kl, low=bound, high=bound)
        assert measure(partial(dppo, too_far=too_far), by_hand())["dppo_masked"] == masked
    pulled = measure(partial(dppo_pulled, pull=0.5), by_hand())
    log2 = torch.tensor(2.0).log().item()
    assert pulled["dppo_pull"] == pytest.approx(0.5 * log2**2 * (1 + 1 + 4 + 0 + 4) / 5)


def test_the_binary_kl_knows_steps_that_were_certain():
    one, half = torch.zeros(1, 1), torch.tensor([[0.5]]).log()
    left, stayed = (
        CoupledBatch(
            logp=logp, behaviour_logp=one, advantages=torch.tensor([[-1.0]]),
            mask=torch.ones(1, 1, dtype=torch.bool), group=torch.zeros(1, dtype=torch.int64),
        )
        for logp in (half, one)
    )  # fmt: skip
    assert binary_kl(left, low=0.69, high=0.69).item()  # log 2 nats
    assert not binary_kl(stayed, low=0.0, high=0.0).item()


def test_vespo_reports_its_mean_weight(vectors):
    batch = coupled_batch(vectors)
    phi = reshaped_ratio(batch, good=(2.0, 3.0), bad=(3.0, 2.0))
    assert_close((phi * batch.mask)[:, 0], vectors["vespo/phi"], atol=1e-6, rtol=0)
    want = (vectors["vespo/phi"] * batch.mask.sum(1)).sum() / batch.mask.sum()
    assert measure(vespo, batch)["vespo_phi"] == pytest.approx(want.item(), abs=1e-6)


def test_the_ratio_of_a_sample_is_the_reference_one(vectors):
    batch = coupled_batch(vectors)
    ratio = mean_log_ratio(batch).detach().exp()[:, 0]
    assert_close(ratio, vectors["gspo/seq_ratio"], atol=1e-6, rtol=0)
    got = measure(gspo, batch)
    assert got["seq_ratio_mean"] == pytest.approx(ratio.mean().item())
    assert got["seq_ratio_min"] == pytest.approx(ratio.min().item())


def test_dual_clip_counts_the_bad_steps_it_let_go(vectors):
    got = measure(partial(ppo, ratio_max=3.0), coupled_batch(vectors))
    want = vectors["metric/clipfrac_dual"].item()
    assert got["dual_clip_frac"] == pytest.approx(want, abs=1e-6)
    assert "dual_clip_frac" not in measure(ppo, coupled_batch(vectors))
    assert measure(partial(ppo, ratio_max=1.5), by_hand())["dual_clip_frac"] == 1 / 5  # good: 2


def test_the_off_policy_mask_drops_bad_samples_that_were_left_behind(vectors):
    batch = coupled_batch(vectors)
    masked = OffPolicyMask(loss=partial(ppo, clip_low=0.1), delta=0.1)
    kept = ~masked.drop_mask(batch).any(1)
    assert_close(kept.double(), vectors["opsm/keep(.1)"])
    edge = vectors["opsm/seq_kl"][2].item()  # row 3 is further off, but good
    far = [OffPolicyMask(loss=ppo, delta=edge + gap).drop_mask(batch) for gap in (-1e-4, 1e-4)]
    assert [rows.any(1).sum().item() for rows in far] == [1, 0]
    assert not masked(batch)[2].any()
    assert_close(masked(batch)[kept], ppo(batch, clip_low=0.1)[kept])


def test_a_masked_loss_needs_and_measures_what_its_loss_does(vectors):
    masked = OffPolicyMask(loss=partial(ppo, clip_low=0.1), delta=0.1)
    assert facts_of(masked).reads == {"old_logp", "behaviour_logp"}
    assert facts_of(masked).zero_at_zero_advantage
    got, inner = (measure(x, coupled_batch(vectors)) for x in (masked, masked.loss))
    assert got == inner | {"opsm_dropped": pytest.approx(1 / 6)}


def test_a_masked_loss_keeps_groups_together_if_its_loss_does():
    assert not facts_of(OffPolicyMask(loss=ppo, delta=0.1)).whole_groups
    assert facts_of(OffPolicyMask(loss=partial(dpo, beta=0.2), delta=0.1)).whole_groups


def test_a_masked_loss_is_not_one_that_looks_at_a_whole_update():
    with pytest.raises(ValueError, match=r"but kl_cov looks .* set algorithm\.loss\.loss to a"):
        OffPolicyMask(loss=partial(kl_cov, part=0.1), delta=0.1)
