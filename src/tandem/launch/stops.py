"""Handler that ends the process of a run: the reason, what the run left, and the next commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import print_exc, walk_tb
from typing import NoReturn

from torch import OutOfMemoryError

from tandem.config.refusals import refusals
from tandem.launch.people import say
from tandem.record.stopped import describe_stop
from tandem.rewards.result import place_of
from tandem.stop import INTERRUPTED, STOPPED, Stop

FULL = (
    "out of memory; a resumed run computes the same, so set a lower rollout.max_rows if it was "
    "sampling, or max_tokens_per_microbatch (images: model.row_budget) if it was training"
)
FAILED = 1  # exit code of a run that an exception ended
LOST = "another rank ended, and its error is above or in its own log"
PEER = re.compile(r"by peer|remote (worker|process)|broken pipe", re.I)  # of gloo and NCCL
# Modules with the innermost Python frame of a failed collective: its call, the forward pass of DDP,
# and a backward pass, in which DDP reduces gradients.
COLLECTIVE = re.compile(r"torch\.(distributed\.|nn\.parallel\.distributed$|autograd\.graph$)")


@contextmanager
def stops(run_dir: Path) -> Iterator[None]:
    """A block in which expected errors end the process with one line and their exit code; below
    it are the next commands of the run in `run_dir`."""
    with refusals():
        try:
            yield
        except Stop as stop:
            _fail(run_dir, stop, code=STOPPED)
        except OutOfMemoryError:
            print_exc()
            _fail(run_dir, Stop(FULL, page="docs/memory.md"))
        except RuntimeError as error:
            if not _lost_a_rank(error):
                raise
            _fail(run_dir, Stop(LOST, page="docs/several_gpus.md"))
        except SystemExit as ended:
            _explain_exit(ended, run_dir)
            raise


def _explain_exit(ended: SystemExit, run_dir: Path) -> None:
    """The lines of a run that was interrupted. Ends a run in which the code of a user called
    exit(): its code 0 would tell a sweep that the run is complete."""
    if ended.code == INTERRUPTED:
        _tell(describe_stop(run_dir))
    elif by := place_of(ended):
        left = f"exit({ended.code!r}) was called{by}; raise tandem.stop.Stop(REASON) there"
        _fail(run_dir, Stop(left))


def _fail(run_dir: Path, stop: Stop, *, code: int = FAILED) -> NoReturn:
    print(f"stopped: {stop}", file=sys.stderr, flush=True)
    _tell(describe_stop(run_dir, stop))
    sys.exit(code)


def _lost_a_rank(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank ended, which reports its own error."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    collective = COLLECTIVE.match(frame.f_globals.get("__name__", ""))
    return collective is not None and PEER.search(str(error)) is not None


def _tell(lines: str) -> None:
    if lines:
        say(lines)
