"""The banner of a run: the choices, and the arithmetic of its batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tandem import distributed
from tandem.data import Data, InvalidRow
from tandem.launch.devices import describe_device
from tandem.record.terminal import line
from tandem.settings.settings import Settings

REASONS = 3  # named in a line
CHOSEN = ("model", "algorithm", "dynamics", "reward", "data", "environment", "recipe")


def banner(settings: Settings, rewards: Iterable[str]) -> str:
    """Aligned lines. Every derived number is shown with the numbers it follows from.

    rewards: names; several are one choice, such as math_verify+length.
    """
    s = settings
    samples = s.prompts_per_step * s.group_size
    updates = s.num_minibatches * s.epochs
    least, rest = divmod(s.prompts_per_step, s.num_minibatches)
    per_update = f"{least * s.group_size}"
    if rest:  # some updates have one group more
        per_update += f" or {(least + 1) * s.group_size}"
    lines = {
        "chosen": ", ".join([*_list_choices(s, rewards), *_parts(s)]),
        **{what: ", ".join(numbers) for what, numbers in s.replaced.items() if numbers},
        "seed": str(s.seed),
        "iteration": f"{s.prompts_per_step} prompts x {s.group_size} samples = {samples} samples"
        + _describe_ranks(s),
        "updates": f"{s.num_minibatches} minibatches x {s.epochs} epochs = {updates} an iteration, "
        f"{per_update} samples each",
        "length": f"{s.iterations} iterations = {s.iterations * updates} updates, "
        f"{s.iterations * samples} samples",
        "forward": _forward(s),
    }
    return "\n".join(line(name, text) for name, text in lines.items())


def device_banner(settings: Settings) -> str:
    """One line about the device of this process."""
    return line("device", describe_device(settings.trainer, distributed.local_rank()))


def warm_start_banner(settings: Settings) -> str:
    """One line about a warm-start run."""
    chosen = f"model={settings.choices['model']}, algorithm={settings.choices['algorithm']}"
    samples = settings.prompts_per_step * settings.group_size
    return line("first", f"{settings.iterations} iterations of {samples} samples, {chosen}")


def left_out(rows: Sequence[InvalidRow], kept: int) -> str:
    """Rows that cannot be used, with the most frequent reasons; `kept` are left to train on."""
    common = Counter(row.reason for row in rows).most_common(REASONS)
    said = "; ".join(f"{count} x {reason}" for reason, count in common)
    left = f"; {kept:,} left to train on"
    return line("left out", f"{len(rows):,} rows, listed in quarantine.jsonl: {said}{left}")


def prompts_read(data: Data | None, source: str) -> str:
    """The number of prompts of each split; `source` names the one to train on. None: a dry run of
    data that are downloaded."""
    if data is None:
        return line("prompts", "not read, as a dry run downloads nothing")
    of_training = f"{len(data.splits[source]):,} to train on"
    kept = f"{len(data.eval):,} held out for evaluation, {len(data.test):,} set aside for the test"
    bad = f"; {len(data.quarantine):,} bad rows left out" if data.quarantine else ""
    return line("prompts", f"{of_training}, {kept}{bad}")


def _list_choices(settings: Settings, rewards: Iterable[str]) -> list[str]:
    options = {"reward": "+".join(rewards) or None, **settings.choices}
    chosen = {group: options.get(group) for group in CHOSEN}
    return [f"{group}={x}" for group, x in chosen.items() if x not in (None, "none")]


def _parts(settings: Settings) -> list[str]:
    """Parts of a preset that the command line replaced: only a group has a slash."""
    words = [word.lstrip("+") for word in settings.overrides]
    keys = {word: word.partition("=")[0] for word in words}
    return [w for w in words if "/" in keys[w] and not keys[w].startswith("hydra/")]


def _describe_ranks(settings: Settings) -> str:
    devices, ranks = settings.trainer.devices, settings.trainer.ranks
    if ranks == 1:
        return ""
    if ranks is None:
        return f", whole groups over trainer.devices={devices}"
    least, odd = divmod(settings.prompts_per_step, ranks)
    each = f"{least} or {least + 1}" if odd else str(least)
    return f", over {ranks} ranks (trainer.devices={devices}): {each} prompts each"


def _forward(settings: Settings) -> str:
    limits = []
    if settings.max_tokens_per_microbatch is not None:
        limits.append(f"{settings.max_tokens_per_microbatch} tokens (max_tokens_per_microbatch)")
    if settings.micro_batch_size is not None:
        limits.append(f"{settings.micro_batch_size} rows (micro_batch_size)")
    return f"at most {' and '.join(limits)}" if limits else "all rows of an update at once"
