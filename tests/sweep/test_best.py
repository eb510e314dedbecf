"""The best variant is chosen over a whole sweep and everything that was tried."""

import pytest
from compare.written_runs import write_run

from tandem.launch.select import select
from tandem.record.reading import runs
from tandem.stop import INTERRUPTED
from tandem.sweep import status
from tandem.sweep.best import choose, list_whole_runs

COMMAND = "python train.py -m algorithm=grpo,rloo seed=0,1"
JOBS = {
    f"algorithm={name},seed={seed}": ["epochs=2", f"algorithm={name}", f"seed={seed}"]
    for name in ("grpo", "rloo")
    for seed in (0, 1)
}
GRPO, RLOO = list(JOBS)[:2], list(JOBS)[2:]


def plan(folder, jobs=JOBS):
    status.write_plan(folder, COMMAND, jobs)
    return folder


def end(folder, name, code, score=None):
    """The run of this name; it has a record if it has a score."""
    algorithm, seed = (part.partition("=")[2] for part in name.split(","))
    if score is not None:
        write_run(
            folder / name, [0.0, score], seed=int(seed), algorithm=algorithm, overrides=JOBS[name]
        )
    (folder / name).mkdir(exist_ok=True)
    start = status.Start(
        overrides=JOBS[name], launch="a", number=1, host="a", pid=1, seconds=1.0, code=code,
        reason=None,
    )  # fmt: skip
    status.write_start(folder / name, start)


def choose_best(folder):
    found = [runs.read(place) for place in runs.find([folder])]
    return choose(folder, list_whole_runs(folder), found, "eval/accuracy")


def test_of_a_sweep_with_runs_to_come_nothing_is_chosen(tmp_path):
    sweep = plan(tmp_path / "sweep")
    end(sweep, GRPO[0], 0, 0.6)
    end(sweep, GRPO[1], INTERRUPTED, 0.9)
    with pytest.raises(ValueError, match="3 of 4") as refused:
        select(sweep, None, 1, words=[], program=tmp_path / "train.py")
    assert str(refused.value) == (
        "3 of 4 runs are pending (1 stopped, 2 waiting); first run the sweep's command: " + COMMAND
    )
    assert not (sweep / "selection.json").exists()


def test_the_command_is_that_of_what_is_to_come(tmp_path):
    sweep = plan(tmp_path / "sweep", {GRPO[0]: JOBS[GRPO[0]]})
    end(sweep, GRPO[0], 0, 0.6)
    status.write_plan(sweep, "search it", None)
    end(sweep, RLOO[0], INTERRUPTED, 0.6)
    with pytest.raises(ValueError, match=r"1 of 2 runs .*\(1 stopped\).*: search it"):
        list_whole_runs(sweep)


def test_what_was_refused_before_it_had_a_record_was_tried_too(tmp_path):
    sweep = plan(tmp_path / "sweep")
    for name in GRPO:
        end(sweep, name, 0, 0.6)
    for name in RLOO:
        end(sweep, name, 2)
    found = choose_best(sweep)
    assert (found.count, found.silent) == (2, ["algorithm=rloo"])


def test_a_configuration_of_which_one_run_began_counts_once(tmp_path):
    sweep = plan(tmp_path / "sweep")
    for name in (*GRPO, RLOO[0]):
        end(sweep, name, 0, 0.6)
    end(sweep, RLOO[1], 2)
    found = choose_best(sweep)
    assert (found.count, found.silent) == (2, [])


def test_runs_that_nobody_planned_are_chosen_from_as_they_are(tmp_path):
    write_run(tmp_path / "a", [0.0, 0.5], overrides=["algorithm=grpo"])
    assert list_whole_runs(tmp_path) == []
    assert choose_best(tmp_path).count == 1


def test_one_run_is_no_sweep_and_trains_nothing(tmp_path):
    for name in ("config.yaml", "manifest.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=r"is one run, .* evaluate=true evaluation.split=test res"):
        select(tmp_path, None, 5, words=[], program=tmp_path / "train.py")
