"""The commands printed at the end of a run work as printed."""

import json
import shlex

import pytest

from tandem.launch.sample import _parser
from tandem.record.next_commands import example, next_commands


def write(run_dir, *rows):
    (run_dir / "samples").mkdir(parents=True)
    (run_dir / "samples/iteration_000020.jsonl").write_text(
        "".join(json.dumps({"kind": "greedy", "reward": 1.0, **row}) + "\n" for row in rows)
    )


def test_each_line_is_a_command_that_names_the_run(tmp_path):
    run_dir = tmp_path / "my run"
    write(run_dir, {"prompt": "hgfe>"})
    (run_dir / "curves.png").touch()
    curves, sample, resume, compare = next_commands(run_dir, iterations=150).splitlines()
    assert curves.endswith("curves.png")
    assert shlex.split(sample)[-4:] == ["tandem", "sample", str(run_dir), "hgfe>"]
    assert shlex.split(resume)[-2:] == [f"resume={run_dir}", "iterations=300"]
    assert shlex.split(compare)[-3:-1] == ["compare", str(run_dir)]


def test_a_prompt_that_begins_like_a_flag_is_read_as_a_prompt(tmp_path):
    write(tmp_path, {"prompt": "-3+5="})
    sample = shlex.split(next_commands(tmp_path, iterations=1).splitlines()[0])
    given = _parser().parse_intermixed_args(sample[sample.index("tandem") + 2 :])
    assert (given.run, given.prompt) == (tmp_path, "-3+5=")


def test_runs_that_were_kept_offline_are_sent_by_a_command(tmp_path):
    (tmp_path / "wandb/offline-run-1-abc").mkdir(parents=True)
    last = next_commands(tmp_path, iterations=1).splitlines()[-1]
    assert last.endswith(f"wandb sync {tmp_path}/wandb/offline-run-1-abc")


@pytest.mark.parametrize(
    ("rows", "prompt"),
    [
        ([{"prompt": "ba>"}, {"prompt": "dcba>"}, {"prompt": "edcba>", "reward": 0.0}], "dcba>"),
        ([{"prompt": "<|im_start|>user hello"}], "PROMPT"),
        ([{"prompt": "dcba>", "kind": "best"}], "PROMPT"),  # trained on
        ([{"prompt": "long " * 20}, {"prompt": "ba>", "reward": None}], "PROMPT"),
    ],
)
def test_the_prompt_is_a_short_one_that_was_answered_well(tmp_path, rows, prompt):
    write(tmp_path, *rows)
    assert example(tmp_path) == prompt


def test_a_run_without_samples_has_a_place_for_the_prompt(tmp_path):
    assert example(tmp_path) == "PROMPT"
