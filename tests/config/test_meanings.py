"""Meanings of parameters and fields, from the source that defines them."""

from dataclasses import dataclass

import pytest
from torch.optim import AdamW

from tandem.config.meanings import read_meanings


def scored(
    rewards,
    *,
    low: float = 0.0,  # of the first interval
    # Of the second one,
    # in nats.
    high: float = 1.0,
    top: int = 1,
    bottom: int = 2,
    rate: float = 3.0,
    unsaid: int = 0,
):
    """rate x rewards. Only `top` of them count; `bottom` and `top` overlap. It is unsaid.

    bottom: those of low reward; the rest is kept.
    """


@dataclass(frozen=True, kw_only=True)
class Base:
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    count: int = 1  # of files


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("low", "of the first interval"),
        ("high", "Of the second one, in nats."),
        ("top", "Only `top` of them count; `bottom` and `top` overlap"),
        ("bottom", "those of low reward"),
        ("rate", "rate x rewards"),  # the first sentence is a formula
        ("unsaid", None),
    ],
)
def test_a_comment_wins_then_an_entry_then_the_sentence_that_names_it(name, meaning):
    assert read_meanings(scored).get(name) == meaning


def test_a_field_of_a_base_class_has_its_comment():
    assert read_meanings(Derived) == {"size": "bytes", "count": "of files"}


def test_an_argument_of_another_library_has_the_first_sentence_of_its_entry():
    assert read_meanings(AdamW)["lr"] == "learning rate"


def test_what_has_no_source_has_no_meanings():
    assert read_meanings(print) == {}
