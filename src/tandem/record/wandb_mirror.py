"""The mirror to Weights & Biases, which must cost a run nothing when the server is away."""

from __future__ import annotations

import logging
import netrc
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from torch import Tensor

from tandem.record import galleries, pictures
from tandem.record.mirrors import Rows, Run

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

ANSWER_WITHIN = 2.0  # seconds a server gets to show that it is there
START_WITHIN = 10.0  # seconds a server that is there gets to start a run
UPLOAD_WITHIN = 60.0  # seconds at the end for what is not uploaded yet; `wandb sync` does the rest
COLUMNS = ("iteration", "kind", "source", "prompt", "output", "answer", "reward", "length")


class Wandb:
    """One run for all starts of a run directory; offline unless the user is logged in."""

    def __init__(
        self,
        *,
        project: str,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        job_type: str | None = None,
        mode: Literal["auto", "online", "offline"] = "auto",
    ) -> None:
        if mode not in ("auto", "online", "offline"):
            raise ValueError(f"the W&B mode is auto, online or offline, not {mode!r}")
        self.project, self.entity, self.group = project, entity, group
        self.tags, self.job_type, self.mode = list(tags), job_type, mode

    def open(self, run: Run) -> None:
        import wandb

        self.run = self._online(run) if self._goes_online(wandb.setup().settings) else None
        if self.run is None:
            self.run = self._init(run, "offline")
        for axis in ("iteration", "samples", "tokens", "steps", "time/total"):
            self.run.define_metric(axis)  # any of them can be chosen as the x-axis
        self.run.define_metric("*", step_metric="iteration")

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        # Not as W&B's own step: that one refuses the lines a resumed run writes again.
        self.run.log({"iteration": iteration, **metrics})

    def samples(self, iteration: int, rows: Rows) -> None:
        import wandb

        table = wandb.Table(columns=list(COLUMNS))
        for row in rows:
            shown = {**row, "iteration": iteration, "output": _shown(row["output"])}
            table.add_data(*(shown[name] for name in COLUMNS))
        kinds = "_".join(dict.fromkeys(row["kind"] for row in rows))
        sheets = {
            f"pictures/{kind}": _shown(galleries.sheet(of_kind))
            for kind, of_kind in galleries.by_kind(rows).items()
        }
        self.run.log({"iteration": iteration, f"samples/{kinds}": table, **sheets})

    def close(self) -> None:
        self.run.finish()

    def _goes_online(self, settings: wandb.Settings) -> bool:
        if self.mode == "auto" and (settings.mode != "online" or not _logged_in(settings)):
            return False
        if self.mode == "offline":
            return False
        if _answers(settings.base_url):
            return True
        log.warning("W&B does not answer at %s: the run is kept offline", settings.base_url)
        return False

    def _online(self, run: Run) -> wandb.Run | None:
        """A run on the server; None if it does not let one start."""
        import wandb

        try:
            return self._init(run, "online")
        except Exception as error:  # W&B raises many kinds, and offline is the answer to all
            reason = str(error).splitlines()[0]
            log.warning("W&B does not start a run (%s): it is kept offline", reason)
            wandb.teardown()  # or the client says that the id is in use
            return None

    def _init(self, run: Run, mode: Literal["online", "offline"]) -> wandb.Run:
        import wandb

        settings = wandb.Settings(
            init_timeout=START_WITHIN,
            login_timeout=START_WITHIN,
            finish_timeout=UPLOAD_WITHIN,
            console="off",  # what a run prints may hold what its record must not
            x_disable_meta=True,  # the command line, unscrubbed; the manifest has it
            disable_code=True,
            disable_git=True,
            quiet=True,
        )
        return wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.group,
            tags=self.tags,
            job_type=self.job_type,
            mode=mode,
            dir=run.folder,
            id=run.id,
            name=run.folder.name,
            config=dict(run.choices),
            resume="allow",
            settings=settings,
        )


def _shown(output: str | Tensor) -> str | wandb.Image:
    import wandb

    return output if isinstance(output, str) else wandb.Image(pictures.visible(output).numpy())


def _answers(server: str) -> bool:
    """Whether anything that speaks HTTP is there, whatever it says, through the user's proxy."""
    try:
        urllib.request.urlopen(server, timeout=ANSWER_WITHIN).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _logged_in(settings: wandb.Settings) -> bool:
    """By variable, settings file or netrc; asking the client itself would ask the server."""
    if settings.api_key or settings.identity_token_file:
        return True
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return netrc.netrc(path).authenticators(urlsplit(settings.base_url).hostname) is not None
    except (OSError, netrc.NetrcParseError):
        return False
