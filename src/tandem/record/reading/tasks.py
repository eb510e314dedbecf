"""Tasks of runs: variants are compared within one, and aggregated over many.

A task is a choice of data, or of what such a choice reads. Sources within one evaluation are none:
they share their runs, so that their scores are no replicates of one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Facts = Mapping[str, object]  # choices and numbers of a run by name

# What is read; of data with an evaluation file of their own that file, whatever is trained on.
READS = ("data", "data.path", "data.name", "data.split.subset", "data.task")
TRAINED, EVALUATED = "data.path", "data.eval_path"
BRINGS = ("data", "reward", "evaluation", "rollout")  # what may come with a task


def find_task_keys(
    facts: Sequence[Facts], *, by: Sequence[str] = (), task: Sequence[str] = ()
) -> list[str]:
    """The keys that tell the tasks of these runs apart; [] where there is one.

    Left out, `task` is what is read, unless that is what tells variants apart. Raises ValueError
    for a key that tells both variants and tasks apart.
    """
    both = [key for key in task if key in by]
    if both:
        raise ValueError(f"by={both[0]} task={both[0]}: it tells variants apart, or tasks")
    evaluated = any(fact.get(EVALUATED) is not None for fact in facts)
    reads = [EVALUATED if key == TRAINED and evaluated else key for key in READS]
    if not task and {*reads, *READS} & {*by}:
        return []
    keys = task or reads
    return [key for key in keys if len({str(fact.get(key)) for fact in facts}) > 1]


def name_task(fact: Facts, keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={fact[key]}" for key in keys if fact.get(key) is not None)


def find_brought_keys(
    facts: Sequence[Facts], of_task: Sequence[str], which: Sequence[str] = ()
) -> set[str]:
    """Keys that come with a task: runs of one agree on them. With one task, none.

    Another answer length, or a reward that knows the answers of its data, is then no other variant.
    """
    if len(set(of_task)) < 2:
        return set()
    groups = {*BRINGS, *map(_group, which)}
    every = {key for fact in facts for key in fact if _group(key) in groups}
    return {key for key in every if all(len(own) == 1 for own in _values(key, facts, of_task))}


def _group(key: str) -> str:
    return key.replace("/", ".").split(".")[0]


def _values(key: str, facts: Sequence[Facts], of_task: Sequence[str]) -> Iterator[set[str]]:
    """The values of a key in each task."""
    for task in dict.fromkeys(of_task):
        pairs = zip(facts, of_task, strict=True)
        yield {str(fact.get(key)) for fact, own in pairs if own == task}
