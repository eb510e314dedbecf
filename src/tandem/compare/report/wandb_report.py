"""A comparison as a report on W&B: panels of the mirrored runs, and the tables of Tandem.

The tables come from the run directories, as on the page. The panels are drawn by W&B from its
copies of the runs, identified by the ids in their manifests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.compare.comparison import Comparison
from tandem.compare.headline import write_headline
from tandem.compare.report.payload import choose_metrics
from tandem.compare.table import as_prose
from tandem.contracts import need_extra
from tandem.record.reading.provenance import provenance
from tandem.record.reading.runs import AXES, MANIFEST, Run
from tandem.record.reading.variants import Variant

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr

PLACE = re.compile(r"(?P<entity>[\w.-]+)/(?P<project>[\w.-]+)")
LONGEST_TITLE = 128  # characters
# Two panels in a row of W&B's grid.
WIDTH, HEIGHT = 12, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A project on W&B."""

    entity: str | None  # None: the account that is logged in
    project: str


def place_of(option: str, runs: Sequence[Run]) -> Place:
    """The project of the runs for `true`; else the given ENTITY/PROJECT.

    Raises ValueError for anything else, and for runs in several projects or in none.
    """
    if option != "true":
        named = PLACE.fullmatch(option)
        if named is None:
            raise ValueError(f"wandb={option} is not valid; set wandb=true or wandb=ENTITY/PROJECT")
        return Place(**named.groupdict())
    found = {(own.get("entity"), own["project"]) for run in runs if (own := mirror_of(run))}
    if not found:
        raise ValueError(
            "wandb=true: none of the runs is mirrored to W&B; start runs with logger=wandb, or "
            "set wandb=ENTITY/PROJECT"
        )
    if len(found) > 1:
        listed = ", ".join(sorted("/".join(filter(None, one)) for one in found))
        raise ValueError(f"wandb=true: the runs are in {listed}; set wandb=ENTITY/PROJECT")
    ((entity, project),) = found
    return Place(entity=entity, project=project)


def mirror_of(run: Run) -> dict:
    """The W&B settings with which the run was started; {} if it is not mirrored."""
    return (run.config.get("logger") or {}).get("wandb") or {}


def save(found: Comparison, option: str) -> str:
    """Save the report and return its address.

    Raises ValueError in one line if nobody is logged in, or if W&B rejects the report.
    """
    place = place_of(option, found.runs)
    try:
        import wandb_workspaces  # noqa: F401
    except ImportError:
        raise ValueError(need_extra("wandb=", "wandb-report")) from None
    from tandem.record import wandb_account

    if not wandb_account.is_logged_in():
        raise ValueError(
            f"wandb={option}: not logged in to W&B; run `wandb login`, or set WANDB_API_KEY"
        )
    try:
        entity = place.entity or wandb_account.default_entity()
        return build_report(found, Place(entity=entity, project=place.project)).save().url
    except Exception as error:  # W&B's client raises many types, all of them for the user to read
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"wandb={option}: W&B rejected the report: {reason}") from error


def build_report(found: Comparison, place: Place) -> wr.Report:
    """The report as it will be saved, without a request to W&B."""
    import wandb_workspaces.reports.v2 as wr

    names = ", ".join(one.name for one in found.variants)
    headline = as_prose(write_headline(found))
    title = f"{found.metric} of {names}".replace("/", " ")  # it becomes part of a URL
    return wr.Report(
        entity=place.entity,
        project=place.project,
        title=title[:LONGEST_TITLE],
        description=headline,
        width="fluid",
        blocks=[
            wr.MarkdownBlock(text=headline),
            wr.PanelGrid(
                runsets=[_runset(one.variant, place) for one in found.variants],
                panels=_panels(found),
            ),
            *(wr.MarkdownBlock(text=table.markdown()) for table in found.tables),
            wr.MarkdownBlock(text=provenance(found.runs)),
        ],
    )


def _runset(variant: Variant, place: Place) -> wr.Runset:
    """The runs of a variant as one line: seeds share a group."""
    import wandb_workspaces.reports.v2 as wr

    ids = ", ".join(f"'{id_of(run)}'" for run in variant.runs)
    return wr.Runset(
        entity=place.entity,
        project=place.project,
        name=variant.name,
        filters=f"Metric('ID') in [{ids}]",
        groupby=["Group"],
    )


def id_of(run: Run) -> str:
    return json.loads((run.folder / MANIFEST).read_bytes())["id"]


def _panels(found: Comparison) -> list[wr.LinePlot]:
    """The metric on every axis of the runs, and the metrics usually inspected with it."""
    keys = axes(found)
    first = keys.get(found.axis) or keys["iterations"]
    others = [key for key in keys.values() if key != first]
    drawn = [(metric, first) for metric in choose_metrics(found)]
    drawn[1:1] = [(found.metric, key) for key in others]
    return [_panel(place, metric, key) for place, (metric, key) in enumerate(drawn)]


def _panel(place: int, metric: str, key: str) -> wr.LinePlot:
    """The mean of each group, and the range of its seeds."""
    import wandb_workspaces.reports.v2 as wr

    row, column = divmod(place, 2)
    return wr.LinePlot(
        title=f"{metric} by {key}",
        x=key,
        y=[metric],
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        layout=wr.Layout(x=column * WIDTH, y=row * HEIGHT, w=WIDTH, h=HEIGHT),
    )


def axes(found: Comparison) -> dict[str, str]:
    """The axes that all runs with the metric have, and their keys on W&B."""
    scored = [run for run in found.runs if run.score(found.metric) is not None]
    known = {axis for axis in AXES if all(len(run.curve(found.metric, axis).x) for run in scored)}
    return {axis: _key(axis, scored) for axis in AXES if axis in known}


def _key(axis: str, runs: Sequence[Run]) -> str:
    """The key of an axis that most of the runs have: tokens, or steps for a flow model."""
    log, names = AXES[axis]
    return max(names, key=lambda name: sum(name in run.logs[log].names() for run in runs))
