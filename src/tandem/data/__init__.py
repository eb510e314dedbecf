"""Prompts: their sources, splits, and order."""

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
