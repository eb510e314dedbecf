"""What a rule looks at: a configuration after binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.collect import GIVEN
from tandem.config.binding import Call
from tandem.contracts import facts_of
from tandem.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A configuration after binding, before anything is built."""

    settings: Settings
    components: Mapping[str, Any]  # group -> a Call, or a mapping of Calls

    def within(self, group: str, name: str) -> Call | None:
        """The call that stands as an argument of a group's call."""
        outer = self.components[group]
        inner = outer.arguments.get(name) if isinstance(outer, Call) else None
        return inner if isinstance(inner, Call) else None

    def number(self, key: str) -> Any:
        """The value at a dotted key of a component; None where there is none."""
        group, *names = key.split(".")
        value: Any = self.components[group]
        for name in names:
            value = value.arguments.get(name) if isinstance(value, Call) else None
        return value

    @property
    def policy_loss(self) -> Call | None:
        """The loss of the algorithm, out of whatever masks its samples."""
        loss = self.within("algorithm", "loss")
        inner = None if loss is None else loss.arguments.get("loss")
        return inner if isinstance(inner, Call) else loss

    @property
    def estimators(self) -> list[Call]:
        """The advantages of the algorithm, out of whatever normalises or adds them."""
        return list(self.placed_estimators.values())

    @property
    def placed_estimators(self) -> dict[str, Call]:
        """The same, each under the key that it stands at."""
        advantage = self.within("algorithm", "advantage")
        return {} if advantage is None else dict(_innermost(advantage, "algorithm.advantage"))

    @property
    def is_offline(self) -> bool:
        """Nothing is sampled to train on."""
        collect = self.within("algorithm", "collect")
        return collect is not None and bool(facts_of(collect.target).reads & GIVEN)


def _innermost(estimator: Call, where: str) -> Iterator[tuple[str, Call]]:
    shares = estimator.arguments.get("shares", {})
    inside = {"of": estimator.arguments.get("of"), **{f"shares.{k}": v for k, v in shares.items()}}
    calls = {key: call for key, call in inside.items() if isinstance(call, Call)}
    if not calls:
        yield where, estimator
    for key, call in calls.items():
        yield from _innermost(call, f"{where}.{key}")


Rule = Callable[[Composed], str | None]
