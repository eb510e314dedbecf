"""The format of numbers and lists in the tables and sentences of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 4  # variants in a sentence; more are counted


def format_number(value: float | None) -> str:
    """Three decimals; three digits for very small or large numbers; a dash for None."""
    if value is None:
        return "-"
    small = value != 0 and not 0.001 <= abs(value) < 1000
    return f"{value:.3g}" if small else f"{value:.3f}"


def format_p(p: float | None) -> str:
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def format_interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"[{format_number(low)}, {format_number(high)}]"


def format_edges(edges: tuple[float, float] | None) -> str:
    return "-" if edges is None else format_interval(*edges)


def name_seeds(seeds: Sequence[int]) -> str:
    """For example "seed 3" or "seeds 1, 2"."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def list_names(names: Sequence[str], among: int) -> str:
    """Up to four of `among` variants by name; of more only their number."""
    if len(names) > NAMED:
        return f"{len(names)} of {among} others" if len(names) < among else f"all {among} others"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
