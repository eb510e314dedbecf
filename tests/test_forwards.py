"""No network is evaluated twice or in vain; docs/forwards.md has the number of passes."""

import pytest
from forwards import INTRODUCTION, OF_ERRORS, PAGE, PRESETS, count, notes, row

from tandem.experience import Budget

QUICK = {*OF_ERRORS, "flow_grpo"} - {"dmd2", "tdm"}  # tdm_r1 makes all of their passes
EACH = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PRESETS]
GUIDED = "model.negative_prompt=green"


@pytest.mark.parametrize("name", EACH)
def test_each_whom_a_loss_reads_is_asked_once_at_each_point(name):
    for update in count(name):
        assert update.points and update.rows == (update.points,) * len(update.names)
    assert row(name) in PAGE.read_text(encoding="utf-8").splitlines(), "run `make forwards`"


def test_the_page_has_a_row_for_each_of_them_and_these_words():
    text = PAGE.read_text(encoding="utf-8")
    assert [line.split()[1] for line in text.splitlines() if line.startswith("| ")][1:] == PRESETS
    assert text.startswith(INTRODUCTION) and text.endswith(notes()), "run `make forwards`"


def test_guidance_asks_twice_whom_it_guides():
    own = count("dgpo", "algorithm.timestep_sampling.guidance_scale=3", GUIDED)[-1]
    assert own.names == ("live", "fast", "ref")
    assert sorted(own.rows) == [own.points, 2 * own.points, 2 * own.points]
    reference = count("dgpo", "algorithm.timestep_sampling.ref_guidance_scale=3", GUIDED)[-1]
    assert reference.times == 4
    path = count("flow_grpo", "rollout.guidance_scale=3", GUIDED)[-1]
    assert path.names == ("live", "ref") and path.times == 4


def test_a_survey_asks_all_of_them_again_where_an_update_is_cut():
    cut, whole = (count("dgpo", budget=budget)[-1] for budget in (Budget(rows=5), None))
    assert cut.times == 2 * whole.times == 6
    assert count("nft", budget=Budget(rows=5))[-1].times == count("nft")[-1].times == 3
