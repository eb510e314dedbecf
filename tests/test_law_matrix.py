"""Every preset under every law that it must keep; docs/laws.md is the table."""

from dataclasses import replace
from functools import partial

import pytest
from gate import each
from laws.bench import EXACT, Published, load_preset, names, preset
from laws.gradients import kl_gradient
from laws.invariance import one_rank, two_ranks
from laws.matrix import LAWS, PAGE, page, ticked_laws
from torch.testing import assert_close
from two_ranks import on_two_ranks

from tandem.algorithm.algorithm import Algorithm
from tandem.config import build, compose
from tandem.contracts import options_of, parts_of
from tandem.legality.domains import refusal

HOLDS = ticked_laws()
KEPT = [key for key, holds in HOLDS.items() if holds and key[1] != "ranks"]
EXCUSED = [key for key, holds in HOLDS.items() if not holds and LAWS[key[1]].otherwise]
ESTIMATORS = [
    "auto",
    *(
        name
        for name, estimator in options_of("algorithm/kl").items()
        if not any(refusal(function, "tokens", "kl") for function in parts_of(estimator))
    ),
]


# In the gate each law is held by some presets, and each preset by some laws.
@pytest.mark.parametrize(("name", "law"), each(12, KEPT))
def test_the_law_holds(name, law):
    LAWS[law].check(preset(name))


@pytest.mark.parametrize(("name", "law"), EXCUSED, ids=map("-".join, EXCUSED))
def test_the_law_does_not_hold_where_a_reason_says_so(name, law):
    LAWS[law].otherwise(preset(name))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_kl_has_the_gradient_it_promises(estimator):
    chosen = [f"algorithm/kl={estimator}", "algorithm.kl.coef=0.3", "~recipe"]
    kl_gradient(build(compose(chosen).algorithm))


def test_the_table_is_that_of_these_tests():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make laws`"


def learnt(algorithm: Algorithm):
    bench = two_ranks(algorithm)
    return [gradient.numpy() for gradient in bench.gradients], bench.report


def compare_rows(*chosen: str) -> Published:
    """An algorithm that compares all rows of a group, in groups of five."""
    return replace(load_preset(compose([*chosen, "~recipe"])), group_size=5)


# Not presets, but algorithms that read whole groups: of images and of tokens.
COMPARED = {
    "groups of pictures": (
        "algorithm=dgpo", "algorithm/loss=group_preference", "model=tiny_flow",
    ),
    "groups of tokens": ("algorithm=dpo_online", "algorithm/loss=group_preference",
        "algorithm/sampling_strategy=on_policy", "algorithm/advantage=group_relative"),
}  # fmt: skip


def resting() -> Algorithm:
    """A generator that trains in every second iteration, beside its fake score."""
    return replace(preset("dmd2"), policy_every=2)


@pytest.fixture(scope="module")
def of_two_ranks(request):
    """Gradients and reports of all requested presets, on each rank of one pair of processes."""
    tests = [item for item in request.session.items if item.path == request.path]
    ranked = [item for item in tests if "of_two_ranks" in item.fixturenames]
    asked = {item.callspec.params["name"] for item in ranked if hasattr(item, "callspec")}
    presets = {name: preset(name) for name in names() if name in asked}
    presets |= {name: compare_rows(*chosen) for name, chosen in COMPARED.items()}
    presets |= {"resting": resting()}
    return on_two_ranks({name: partial(learnt, own) for name, own in presets.items()})


@pytest.mark.system
@pytest.mark.parametrize("name", each(6, names()))
def test_two_ranks_give_the_gradients_of_one_but_where_a_reason_says_not(name, of_two_ranks):
    alone, differ = one_rank(preset(name)), 0
    for rank in range(2):
        gradients, report = of_two_ranks[rank, name]
        assert len(gradients) == len(alone.gradients)
        if not HOLDS[name, "ranks"]:
            pairs = zip(gradients, alone.gradients, strict=True)
            differ += any(abs(got - want.numpy()).max() > 1e-9 for got, want in pairs)
            continue
        assert_close(gradients, [gradient.numpy() for gradient in alone.gradients], **EXACT)
        assert_close(report, alone.report, **EXACT)
    assert HOLDS[name, "ranks"] == (not differ)


@pytest.mark.system
@pytest.mark.parametrize("name", COMPARED)
def test_two_ranks_compare_groups_as_one_does(name, of_two_ranks):
    alone = one_rank(compare_rows(*COMPARED[name]))
    assert alone.statistics[-1]["policy"].any()
    assert all(gradient.any() for gradient in alone.gradients)
    for rank in range(2):
        gradients, report = of_two_ranks[rank, name]
        assert_close(gradients, [gradient.numpy() for gradient in alone.gradients], **EXACT)
        assert_close(report, alone.report, **EXACT)


@pytest.mark.system
def test_two_ranks_rest_as_one_does(of_two_ranks):
    alone = one_rank(resting())
    tables = [gradient.chunk(2) for gradient in alone.gradients]  # the policy's, and the fake's
    assert [bool(policy.any()) for policy, _ in tables] == [False, False, True, True]
    assert all(fake.any() for _, fake in tables)
    for rank in range(2):
        gradients, report = of_two_ranks[rank, "resting"]
        assert_close(gradients, [gradient.numpy() for gradient in alone.gradients], **EXACT)
        assert_close(report, alone.report, **EXACT)
