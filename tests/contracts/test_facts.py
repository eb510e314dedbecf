"""Facts that name something missing: a value, a domain, a number of the function."""

import dataclasses

import pytest

from tandem.contracts import declare

WRONG = {
    "compares: unknown 'grp'; did you mean 'group'?": {"compares": "grp"},
    "per: unknown 'rows'; did you mean 'row'?": {"per": "rows"},
    "units: unknown 'clp'; did you mean 'clip'?": {"units": {"width": "clp"}},
    "refused: unknown 'token'; did you mean 'tokens'?": {"refused": {"token": "set another"}},
    "loss: units: unknown 'widht'; did you mean 'width'?": {"units": {"widht": "clip"}},
    "loss: units: unknown 'clip_low'; there are batch, width": {
        "clips": 1.0,
        "units": {"clip_low": "clip"},
    },
    "loss: set_size: unknown 'k'; there are batch, width": {"set_size": "k"},
    "loss: rising: unknown 'with'; did you mean 'width'?": {"rising": [("with", "width")]},
    "loss: read_with: unknown 'wdth'; did you mean 'width'?": {"read_with": {"wdth": ("width", 1)}},
    "units=['width']: give a mapping": {"units": ["width"]},
    "metrics='actor/x': give a function": {"metrics": "actor/x"},
    "batch_statistics=True: give a function": {"batch_statistics": True},
    'clips: declare units={"clip_low": "clip"} or "sequence" as well': {"clips": 1.0},
}


def loss(batch, *, width=0.2): ...


def open_ended(batch, **numbers): ...


@pytest.mark.parametrize(("said", "facts"), WRONG.items(), ids=WRONG)
def test_a_fact_that_names_nothing_is_refused_with_the_nearest_name(said, facts):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        declare(**facts)(loss)
    assert str(error.value) == said


@pytest.mark.parametrize("facts", [{"set_size": "k"}, {"horizon": "k"}])
def test_a_number_that_a_rule_reads_is_readable_from_what_is_built(facts):
    class best_of:
        def __init__(self, *, k: int = 4) -> None: ...

    with pytest.raises(
        ValueError, match=r"best_of: \w+ names 'k', which cannot be read .* dataclass"
    ):
        declare(**facts)(best_of)
    made = dataclasses.make_dataclass("best_of", [("k", int)])
    assert dataclasses.is_dataclass(declare(**facts)(made))


def test_what_exists_is_declared():
    facts = {"compares": None, "per": "sample", "units": {"width": "clip"}}
    assert declare(**facts)(loss).facts.units == {"width": "clip"}
    assert declare(units={"any": "clip"})(open_ended).facts.units == {"any": "clip"}
