"""Teachers of distillation, of tokens and of flows: they are chosen by the source of a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tandem.contracts.parts import expand_home
from tandem.stop import command_to_resume
from tandem.types import Prompt

OTHERS = "others"  # the teacher of every source without one of its own


@dataclass(frozen=True, kw_only=True)
class Teachers(ABC):
    """The teacher of each source. A subclass defines what a teacher is for its kind of policy."""

    of_texts: ClassVar[bool]  # whether it judges tokens; else velocities
    teaches_itself = False  # whether one of them is the policy itself

    # Teacher of each source of prompts: {SOURCE: run directory, or what the subclass accepts,
    # others: ...}.
    folders: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("algorithm.teachers.folders={} is empty; name at least one teacher")

    def as_override(self, source: str) -> str:
        """The teacher of a source as a command-line override."""
        return f"algorithm.teachers.folders.{source}={self.folders[source]}"

    @property
    def summary(self) -> str:
        """The teacher of each source, for display."""
        return ", ".join(f"{folder} for {source}" for source, folder in self.folders.items())

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError for a teacher that cannot be loaded, as far as this is cheap to know."""

    def check_run(self, source: str) -> None:
        """Raise ValueError for the directory of a run that has not saved a model."""
        place = expand_home(self.folders[source])
        if (place / "config.yaml").is_file() and not (place / "model").is_dir():
            raise ValueError(
                f"{self.as_override(source)}: there is no model/ in this run; finish it first: "
                f"{command_to_resume(place)}"
            )


def weights_of(folder: str) -> Path:
    """The model/ of a run directory, or the folder itself."""
    place = expand_home(folder)
    return place / "model" if (place / "model").is_dir() else place


def rows_by_teacher(
    prompts: Sequence[Prompt], sources: Collection[str]
) -> Iterator[tuple[str, list[int]]]:
    """Each source that teaches some of the prompts, with the indices of those prompts. Raises
    ValueError for a prompt without a teacher."""
    chosen = [_teacher_of(prompt, sources) for prompt in prompts]
    for source in dict.fromkeys(chosen):
        yield source, [place for place, other in enumerate(chosen) if other == source]


def _teacher_of(prompt: Prompt, sources: Collection[str]) -> str:
    """The most specific match: the source, its data set, then all others."""
    names = (prompt.source, prompt.source.partition("/")[0], OTHERS)
    found = next((name for name in names if name in sources), None)
    if found is None:
        named = ", ".join(f"{source}: ..." for source in sorted(sources))
        raise ValueError(
            f"algorithm.teachers.folders={{{named}}} has no teacher for prompts of "
            f"{prompt.source}; add {prompt.source}: RUN, or {OTHERS}: RUN for every other source"
        )
    return found
