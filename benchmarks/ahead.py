"""The trainer's busy share with rollouts ahead, beside a simulation: `python benchmarks/ahead.py`.

The queue and its threads sample groups whose rows take log-normal times, and a trainer sleeps for
the time of an iteration; no model is involved. The simulation runs the same latencies through the
same queue in virtual time, without threads. `--save` writes benchmarks/results/ahead.md.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # run as a script

from tandem.training.ahead import Ahead, Ticket  # noqa: E402
from tandem.training.ahead_threads import GroupThreads  # noqa: E402

RESULTS = HERE / "results" / "ahead.md"
WORLDS = [("exact", k, k) for k in (0, 1, 2, 4)] + [("ready", 2, 1), ("ready", 4, 2)]
WITHIN = 5.0  # points, between measured and simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An iteration: groups of rows, each complete when its last row ends."""

    iterations: int = 30
    groups: int = 16
    rows: int = 8
    room: int = 12  # groups at once
    row: float = 0.05  # seconds that a row takes on average
    sigma: float = 1.0  # of the logarithm of these times
    training: float = 0.3  # seconds of an iteration

    def latency(self, ticket: Ticket) -> float:
        """Seconds of a group; equal in measurement and simulation."""
        draws = random.Random(f"{ticket.iteration}-{ticket.slot}")
        middle = -(self.sigma**2) / 2  # so that the mean is 1
        return self.row * max(draws.lognormvariate(middle, self.sigma) for _ in range(self.rows))

    def queue(self, order: str, staleness: int, ahead: int) -> Ahead:
        return Ahead(
            order=order,
            staleness=staleness,
            ahead=ahead,
            slots=range(self.groups),
            iterations=self.iterations,
        )


def measure(work: Workload, *world: object) -> float:
    """Percent of the time in which the trainer trains, with threads."""
    queue = work.queue(*world)
    iteration = 0

    def sample(ticket: Ticket) -> None:
        threads.enter(ticket)
        time.sleep(work.latency(ticket))

    threads = GroupThreads(
        queue, sample, version=lambda: iteration, room=work.room, check=lambda: None
    )
    began = time.perf_counter()
    for iteration in range(work.iterations):
        threads.admit(iteration)
        threads.take(iteration)
        time.sleep(work.training)
    return 100 * work.iterations * work.training / (time.perf_counter() - began)


def simulate(work: Workload, *world: object) -> float:
    """The same percentage in virtual time."""
    queue, now = work.queue(*world), 0.0
    under_way: list[tuple[float, Ticket]] = []

    def begin(iteration: int) -> None:
        while len(under_way) < work.room and (ticket := queue.begin(iteration)) is not None:
            heapq.heappush(under_way, (now + work.latency(ticket), ticket))

    for iteration in range(work.iterations):
        queue.admit(iteration)
        begin(iteration)
        while queue.batch(iteration) is None:
            now, ticket = heapq.heappop(under_way)
            queue.arrive(ticket)
            begin(iteration)
        end = now + work.training
        while under_way and under_way[0][0] <= end:
            now, ticket = heapq.heappop(under_way)
            queue.arrive(ticket)
            begin(iteration)
        now = end
    return 100 * work.iterations * work.training / now


def table(work: Workload) -> tuple[str, float]:
    """One line per workload, and the largest gap in percentage points."""
    lines = [
        "| order | staleness | ahead | measured, percent busy | simulated |",
        "|---|---|---|---|---|",
    ]
    worst = 0.0
    for world in WORLDS:
        found, expected = (run(work, *world) for run in (measure, simulate))
        worst = max(worst, abs(found - expected))
        lines.append(f"| {world[0]} | {world[1]} | {world[2]} | {found:.1f} | {expected:.1f} |")
    return "\n".join(lines), worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/ahead.md")
    parser.add_argument("--iterations", type=int, default=Workload().iterations)
    chosen = parser.parse_args()
    text, worst = table(Workload(iterations=chosen.iterations))
    said = f"largest difference {worst:.1f} points (claimed: at most {WITHIN:g})"
    print(f"{text}\n\n{said}")
    if chosen.save:
        RESULTS.write_text(f"# Rollouts ahead: the trainer's busy share\n\n{text}\n\n{said}\n")
    sys.exit(worst > WITHIN)


if __name__ == "__main__":
    main()
