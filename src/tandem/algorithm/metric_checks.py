"""The error of metrics that are not records of `tandem.metrics`, with their function."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tandem.contracts.outputs import wrong_value
from tandem.metrics import Metric


def refuse_other_metrics(measure: Callable | None, *records: object) -> None:
    """Raise WrongOutput if the metrics of a part for these records are no records of
    `tandem.metrics`; None: it declares none."""
    found = {} if measure is None else measure(*records)
    if not isinstance(found, Mapping):
        raise wrong_value(measure, found, "a dict of names to records of tandem.metrics")
    for name, value in found.items():
        if not isinstance(value, Metric):
            want = f"{name} as a record of tandem.metrics, such as masked_mean(x, batch.mask)"
            raise wrong_value(measure, value, want)
