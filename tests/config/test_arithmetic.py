"""The arithmetic of configurations: numbers only, and small ones."""

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from tandem.config import composition  # noqa: F401  (it registers what is tested)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${power:2,3}", 8),
        ("${power:4,-0.5}", 0.5),
        ("${power:2,-1}", 0.5),
        ("${power:10,30}", 1e30),
        ("${mul:2,3}", 6),
        ("${mul:0.5,4}", 2.0),
        ("${mul:9223372036854775808,1}", 2**63),
    ],
)
def test_whole_numbers_stay_whole_while_they_are_small(text, value):
    found = OmegaConf.create({"x": text}).x
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${mul:4294967296,4294967296}", r"beyond 2\*\*63"),
        ("${mul:-4294967296,4294967296}", r"beyond 2\*\*63"),
        ("${mul:[a],3}", "mul takes numbers"),
        ("${mul:null,3}", "mul takes numbers"),
    ],
)
def test_a_product_is_of_numbers_and_bounded(text, said):
    with pytest.raises(InterpolationResolutionError, match=said):
        OmegaConf.create({"x": text}).x  # noqa: B018
