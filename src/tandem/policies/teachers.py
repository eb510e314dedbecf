"""Teachers of distillation: which one is asked about which prompt, for tokens and for flows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tandem.stop import command_to_resume
from tandem.types import Prompt

OTHERS = "others"  # the teacher of every source that has none of its own


@dataclass(frozen=True, kw_only=True)
class Teachers(ABC):
    """Who teaches what. A subclass says what a teacher is to a policy of its kind."""

    of_texts: ClassVar[bool]  # whether it judges tokens, or else velocities
    teaches_itself = False  # whether one of them is the policy
    asks_servers = False  # whether one of them is on a server

    # Source, or "others" -> a run directory, or what else the subclass takes for a teacher.
    folders: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("algorithm.teachers.folders={}: name one teacher or more")

    def given(self, source: str) -> str:
        """The teacher of a source as a user would write it."""
        return f"algorithm.teachers.folders.{source}={self.folders[source]}"

    @property
    def summary(self) -> str:
        """Who teaches what, for people."""
        return ", ".join(f"{folder} for {source}" for source, folder in self.folders.items())

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError for a teacher that cannot be loaded, as far as a look at it tells."""

    def check_run(self, source: str) -> None:
        """Raise ValueError for the directory of a run that has left no model."""
        place = Path(self.folders[source]).expanduser()
        if (place / "config.yaml").is_file() and not (place / "model").is_dir():
            raise ValueError(
                f"{self.given(source)}: there is no model/ in this run; finish it first: "
                f"{command_to_resume(place)}"
            )


def weights_of(folder: str) -> Path:
    """What a run leaves in its directory, or the folder itself."""
    place = Path(folder).expanduser()
    return place / "model" if (place / "model").is_dir() else place


def rows_by_teacher(
    prompts: Sequence[Prompt], sources: Collection[str]
) -> Iterator[tuple[str, list[int]]]:
    """Each source that teaches some of the prompts, and their places."""
    chosen = [_teacher_of(prompt, sources) for prompt in prompts]
    for source in dict.fromkeys(chosen):
        yield source, [place for place, other in enumerate(chosen) if other == source]


def _teacher_of(prompt: Prompt, sources: Collection[str]) -> str:
    """The most particular name that fits: the source, its data set, then all others."""
    names = (prompt.source, prompt.source.partition("/")[0], OTHERS)
    found = next((name for name in names if name in sources), None)
    if found is None:
        raise ValueError(
            f"nobody teaches the prompts of {prompt.source}: algorithm.teachers.folders has "
            f"{', '.join(sources)}; name a folder for it, or one for {OTHERS}"
        )
    return found
