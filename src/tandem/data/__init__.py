"""Prompts: where they come from, how they are split, and in which order they are drawn."""

from tandem.data.records import Data, InvalidRow, Wording, split_overlap, write_quarantine
from tandem.data.sort import Lengths
from tandem.data.stream import Curriculum, PromptStream

__all__ = [
    "Curriculum",
    "Data",
    "InvalidRow",
    "Lengths",
    "PromptStream",
    "Wording",
    "split_overlap",
    "write_quarantine",
]
