"""Tasks of runs: variants are compared within a task and aggregated over tasks.

A task is a choice of data, or of the files that the data reads. The sources of one evaluation are
not tasks: they share their runs, so their scores are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Facts = Mapping[str, object]  # choices and numbers of a run by name

# Keys of what is read. With a separate evaluation file only that file counts (`find_task_keys`).
READS = ("data", "data.path", "data.name", "data.split.subset", "data.task")
TRAINED, EVALUATED = "data.path", "data.eval_path"
BRINGS = ("data", "reward", "evaluation", "rollout")  # groups that may change with the task


def find_task_keys(
    facts: Sequence[Facts], *, by: Sequence[str] = (), task: Sequence[str] = ()
) -> list[str]:
    """The keys that distinguish the tasks of these runs; [] if there is one task.

    By default these are READS, unless `by` has one of them. Raises ValueError for a key in both
    `by` and `task`.
    """
    both = [key for key in task if key in by]
    if both:
        raise ValueError(
            f"by={both[0]} task={both[0]}: a key distinguishes either variants or tasks; remove one"
        )
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
    """Keys that change with the task: the runs of each task agree on them. Empty with one task.

    The answer length of a task, or the reward for its data, then does not make another variant.
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
