"""Diagnosis of a mismatch between engine and trainer: every cause, simulated, is named."""

from dataclasses import replace

import pytest
import torch

from tandem.policies.engines.diagnosis import (
    OLD_HEAD,
    Seen,
    diagnose,
    golden_section,
    logp_of_tokens,
)

ROWS, STEPS, VOCABULARY = 6, 20, 60


def make_seen(temperature=1.0, seed=0):
    """An engine that agrees with the trainer; rows of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.tensor([20, 13, 20, 4, 17, 1])
    mask = torch.arange(STEPS) < length[:, None]
    logits = 2 * torch.randn(int(mask.sum()), VOCABULARY, generator=generator)
    logp = (logits / temperature).log_softmax(-1)
    token = logp.exp().multinomial(1, generator=generator)[:, 0]
    engine = torch.zeros(ROWS, STEPS)
    engine[mask] = logp_of_tokens(logp, token)
    return Seen(engine=engine, mask=mask, logits=logits, token=token, temperature=temperature,
                others={})  # fmt: skip


def saying(seen, logp):
    engine = torch.zeros(ROWS, STEPS)
    engine[seen.mask] = logp
    return replace(seen, engine=engine)


def noise(seen, size):
    return size * torch.randn(len(seen.token), generator=torch.Generator().manual_seed(1))


def resample(seen, logp):
    """Tokens that an engine sampled from another distribution, and reports as such."""
    token = logp.exp().multinomial(1, generator=torch.Generator().manual_seed(2))[:, 0]
    return saying(replace(seen, token=token), logp_of_tokens(logp, token))


@pytest.mark.parametrize("engine", [0.5, 0.7, 1.3])
def test_another_temperature_is_named(engine):
    case = make_seen()
    said = diagnose(resample(case, (case.logits / engine).log_softmax(-1)))
    assert f"fit temperature {engine:g}, and the trainer uses 1;" in said
    assert f"set rollout.temperature={engine:g}" in said


def test_raw_log_probabilities_are_named():
    case = make_seen(temperature=0.7)
    said = diagnose(saying(case, logp_of_tokens(case.logits.log_softmax(-1), case.token)))
    assert "fit temperature 1, and the trainer uses 0.7" in said
    assert "--logprobs-mode processed_logprobs" in said


@pytest.mark.parametrize("k", [5, 20])
def test_a_tail_that_was_cut_by_its_count_is_named(k):
    case = make_seen(temperature=0.9)
    logp = case.logp
    cut = logp.masked_fill(logp < logp.topk(k).values[:, -1:], -torch.inf).log_softmax(-1)
    assert f"fit top_k={k}:" in diagnose(resample(case, cut))


def test_a_tail_that_was_cut_by_its_mass_is_named():
    case = make_seen()
    ordered, ids = case.logp.sort(descending=True)
    out = ordered.exp().cumsum(-1) - ordered.exp() >= 0.8
    cut = case.logp.masked_fill(out.scatter(1, ids, out), -torch.inf).log_softmax(-1)
    assert "fit top_p=0.8:" in diagnose(resample(case, cut))


def test_a_tail_that_was_cut_in_another_way_is_seen():
    case = make_seen()
    cut = case.logp.masked_fill(case.logp < case.logp.amax(-1, True) - 2, -torch.inf)
    assert "look for min_p" in diagnose(resample(case, cut.log_softmax(-1)))


@pytest.mark.parametrize(("shift", "place"), [(1, "before"), (-1, "behind")])
def test_numbers_of_a_neighbour_are_named(shift, place):
    case = make_seen()
    moved = torch.where(case.mask, case.engine.roll(shift, 1), 0)
    said = diagnose(replace(case, engine=moved))
    assert f"shifted by one token: they fit the token {place}" in said


def test_weights_that_are_known_are_named_and_others_are_not():
    case = make_seen()
    foreign = saying(case, case.trainer + noise(case, 0.5))
    assert "has other weights; maybe the newest weights did not reach" in diagnose(foreign)
    other = replace(foreign, others={"the weights before": foreign.engine.flip(0) - 1})
    assert "nor older weights explains them: the engine has other weights" in diagnose(other)
    stale = replace(foreign, others={"the weights before": foreign.engine + 1e-4})
    assert "fit the weights before: the newest weights did not reach the server" in diagnose(stale)


def test_small_noise_on_both_sides_is_a_lower_dtype():
    case = make_seen()
    assert "a lower dtype" in diagnose(saying(case, case.trainer + noise(case, 0.01)))
    assert "a lower dtype" not in diagnose(saying(case, case.trainer + 0.01))


def test_causes_are_seen_through_the_noise_of_a_lower_dtype():
    case = make_seen()
    warm = resample(case, (case.logits / 0.6).log_softmax(-1))
    rough = replace(warm, engine=warm.engine + case.mask * 0.004)
    assert "fit temperature 0.6" in diagnose(rough)


def test_the_lowest_point_of_a_valley_is_found():
    assert golden_section(lambda x: abs(x - 0.3), -1.0, 2.0) == pytest.approx(0.3, abs=1e-5)


def test_an_old_head_is_told_from_old_weights_by_what_to_do():
    case = make_seen()
    logp = logp_of_tokens((case.logits + torch.randn_like(case.logits)).log_softmax(-1), case.token)
    lying = saying(case, logp)
    other = torch.zeros(ROWS, STEPS)
    for name, advice in ((OLD_HEAD, "tie_word_embeddings=false"), ("older ones", "engine.folder")):
        said = diagnose(replace(lying, others={name: lying.engine, "others": other}))
        assert f"fit {name}: " in said
        assert advice in said
