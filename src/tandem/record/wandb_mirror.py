"""The mirror to Weights & Biases, which must not hold up a run when the server is away.

W&B's own step is the iteration, and each iteration is one row of its history: its lines of both
logs, and its samples. A resumed run first writes from the record what W&B lacks. So an offline run
is complete in the folder of its last start, and no point occurs twice.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tandem.record import labels, wandb_tables
from tandem.record.mirrors import Rows, Run, replay
from tandem.record.secrets import scrub
from tandem.record.wandb_account import is_logged_in

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

START_WITHIN = 10.0  # seconds that a server may delay the start of a run, in all
ANSWER_WITHIN = 2.0  # of them, for the server to respond
FALL_BACK = 5.0  # of them, for the client to start, to give up, and to start again offline
# Seconds at the end for pending uploads; `wandb sync --include-online` does the rest.
UPLOAD_WITHIN = 60.0
AXES = (
    *("iteration", "samples", "tokens", "steps"),
    *("time/reached", "time/reached_cpu", "time/reached_gpu"),
)
LONGEST_TAG = 64  # characters, W&B's own limit
STAGING = "WANDB_DATA_DIR"


class Wandb:
    """One run for all starts of a run directory; offline unless the user is logged in."""

    def __init__(
        self,
        *,
        project: str,  # the project of W&B that the run belongs to
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        job_type: str | None = None,
        mode: Literal["auto", "online", "offline"] = "auto",
    ) -> None:
        if mode not in ("auto", "online", "offline"):
            raise ValueError(f"the W&B mode is auto, online or offline, not {mode!r}")
        for tag in tags:
            if not 0 < len(tag) <= LONGEST_TAG:
                raise ValueError(f"a tag of W&B has 1 to {LONGEST_TAG} characters, not {tag!r}")
        self.project, self.entity, self.group = project, entity, group
        self.tags, self.job_type, self.mode = tags, job_type, mode

    def open(self, run: Run) -> None:
        """Start or resume the run on W&B."""
        import wandb

        self.source, self.waiting = run, {}
        self.began, self.handled = time.monotonic(), sys.exception()
        self.run = self._online(run) if self._goes_online(wandb.setup().settings) else None
        if self.run is None:
            self.run = self._init(run, "offline")
        self.known = self.run.starting_step  # W&B has the lines before it
        for axis in AXES:
            self.run.define_metric(axis)  # any of them can be chosen as the x-axis
        self.run.define_metric("*", step_metric="iteration")
        replay(self, run, first=self.known)
        self._drop_former()

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an iteration."""
        row, self.waiting = {**metrics, "iteration": iteration, **self.waiting}, {}
        if iteration >= self.known:
            with self._stage_tables():
                self.run.log(row, step=iteration, commit=True)

    def samples(self, iteration: int, rows: Rows) -> None:
        self.waiting |= wandb_tables.make_media(iteration, rows)

    def close(self) -> None:
        """Write the joined table of evaluations, and end the run on W&B; while an exception of the
        run is handled, as of a guard or a signal, as one that failed."""
        if (table := wandb_tables.join_evaluations(self.source.folder)) is not None:
            with self._stage_tables():
                self.run.summary["samples/evaluations"] = table
        self.run.finish(exit_code=int(sys.exception() is not self.handled))

    def _drop_former(self) -> None:
        """Delete offline copies of earlier starts: this one contains them, and their later upload
        would replace it."""
        own = Path(self.run.settings.sync_dir).resolve()
        for log_file in self.source.folder.glob(f"wandb/offline-run-*/run-{self.source.id}.wandb"):
            if log_file.parent.resolve() != own:
                shutil.rmtree(log_file.parent)

    @contextmanager
    def _stage_tables(self) -> Iterator[None]:
        """Tables await their upload in the run's folder, not in the user's home."""
        # The folder of a warm start moves to the cache, and W&B records absolute paths.
        moves = self.source.job == "warm_start"
        if moves or STAGING in os.environ:
            yield
            return
        os.environ[STAGING] = self.run.settings.sync_dir
        try:
            yield
        finally:
            del os.environ[STAGING]

    def _goes_online(self, settings: wandb.Settings) -> bool:
        if self.mode == "auto" and (settings.mode != "online" or not is_logged_in(settings)):
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
            reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
            log.warning("W&B does not start a run (%s): it is kept offline", reason)
            wandb.teardown()  # otherwise the client refuses the id as in use
            return None

    def _init(self, run: Run, mode: Literal["online", "offline"]) -> wandb.Run:
        import wandb

        patience = max(self.began + START_WITHIN - FALL_BACK - time.monotonic(), 1.0)
        settings = wandb.Settings(
            init_timeout=patience,
            login_timeout=patience,
            finish_timeout=UPLOAD_WITHIN,
            reinit="finish_previous",  # otherwise a sweep's job would write into a crashed one
            console="off",  # printed text may hold secrets, which the record must not
            x_disable_meta=True,  # it has the unscrubbed command line; the manifest has a clean one
            disable_code=True,
            disable_git=True,
            quiet=True,
        )
        tags = [scrub(tag, os.environ) for tag in self.tags]
        return wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.group or labels.group(run.config),
            tags=list(dict.fromkeys((*labels.tags(run.config), *tags))),
            job_type=self.job_type or run.job,
            mode=mode,
            dir=run.folder,
            id=run.id,
            name=run.name,
            config={**labels.choices(run.config), "settings": labels.settings(run.config)},
            # Offline each start holds the whole run: uploaded, it replaces any other.
            resume="allow" if mode == "online" else None,
            settings=settings,
        )


def _answers(server: str) -> bool:
    """Whether an HTTP server responds, with whatever status, through the user's proxy.

    In a thread: the timeout of a connection bounds each read, not their sum.
    """
    said: queue.SimpleQueue[bool] = queue.SimpleQueue()
    threading.Thread(target=lambda: said.put(_opens(server)), daemon=True).start()
    try:
        return said.get(timeout=ANSWER_WITHIN)
    except queue.Empty:
        return False


def _opens(server: str) -> bool:
    try:
        opener = urllib.request.build_opener()  # `urlopen` keeps the proxy of its first call
        opener.open(server, timeout=ANSWER_WITHIN).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError, HTTPException):
        return False
    return True
