"""Every family on a random checkpoint, compared with its diffusers pipeline."""

import pytest
from families import ADAPTED, EVERY, PAGE, REMAINING, compared, flow_pipelines
from policies.flow.tiny_families import FAMILIES
from torch.testing import assert_close

# Others with the same code.
SLOW = ("wan2_2_5b", "wan2_2_i2v_14b", "wan2_2_5b_i2v", "flux2_klein_edit")
CELLS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EVERY]


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
@pytest.mark.parametrize("name", CELLS)
def test_it_paints_what_its_own_pipeline_paints(name, tmp_path):
    """With the folder's own noise levels, from the same noise, with and without guidance."""
    for one in compared(name, tmp_path):
        ours, theirs = one.latents
        assert theirs.std() > 0.1
        assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        ours, theirs = one.pixels
        assert (ours - theirs.round()).abs().max() <= 1


def test_every_pipeline_of_a_flow_has_an_adapter_or_a_reason():
    left = {name for names in REMAINING for name in names.split()}
    assert flow_pipelines() <= left | {*ADAPTED.split()}


def test_the_page_has_a_row_for_every_family_and_every_reason():
    page = PAGE.read_text()
    assert all(f"\n| {name} | " in page for name in FAMILIES)
    assert all(why in page for why in REMAINING.values())
