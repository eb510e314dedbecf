"""An incomplete run directory is refused, and nothing in it is truncated."""

import shutil

import pytest
import torch

from tandem.record import jsonl
from tandem.record.checkpoint import find_newest_whole
from tandem.record.publishing import publish
from tandem.record.resumable import check_resumable


def write(folder, *, lines, steps=()):
    for iteration in range(lines):
        jsonl.append(folder / "metrics.jsonl", {"iteration": iteration})
    (folder / "checkpoints").mkdir()
    for step in steps:
        tensors = {"policy": {"weight": torch.full((4,), float(step))}}
        publish(folder / "checkpoints", step, tensors, {"iteration": step}, keep=9)
    return folder


@pytest.mark.parametrize(
    ("lines", "steps"), [(0, ()), (20, ()), (21, ()), (21, (20,)), (25, (10, 20))]
)
def test_what_a_kill_leaves_goes_on(tmp_path, lines, steps):
    check_resumable(write(tmp_path, lines=lines, steps=steps), every=20, iterations=60)


@pytest.mark.parametrize("lines", [1, 25])
def test_lines_without_the_folder_of_checkpoints_are_refused(tmp_path, lines):
    (write(tmp_path, lines=lines) / "checkpoints").rmdir()
    with pytest.raises(ValueError, match=f"its logs have {lines} lines, but .*has no check"):
        check_resumable(tmp_path, every=20, iterations=60)


def test_more_lines_than_a_run_has_before_its_first_checkpoint_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"restore the checkpoints, or remove metrics\.jsonl"):
        check_resumable(write(tmp_path, lines=22), every=20, iterations=60)


def test_an_end_before_the_newest_checkpoint_is_refused(tmp_path):
    folder = write(tmp_path, lines=25, steps=(10, 20))
    check_resumable(folder, every=20, iterations=20)
    with pytest.raises(ValueError, match=r"^iterations=19: .* of iteration 20; set iterations=20"):
        check_resumable(folder, every=20, iterations=19)


def test_a_renamed_checkpoint_is_refused_and_never_used(tmp_path):
    folder = write(tmp_path, lines=45, steps=(20, 40)) / "checkpoints"
    (folder / "step_000040").rename(folder / "step_000060")
    with pytest.raises(ValueError, match=r"step_000060 is refused: it holds step 40; rename it"):
        check_resumable(tmp_path, every=20, iterations=60)
    found = find_newest_whole(folder)
    assert (found.step, len(found.skipped)) == (20, 1)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"step": [1]}', '{"step": null}', "3"])
def test_a_checkpoint_with_a_damaged_manifest_is_skipped_whatever_it_holds(tmp_path, text):
    folder = write(tmp_path, lines=45, steps=(20, 40)) / "checkpoints"
    (folder / "step_000040" / "manifest.json").write_text(text)
    check_resumable(tmp_path, every=20, iterations=60)
    assert find_newest_whole(folder).step == 20


@pytest.mark.parametrize("value", ['"text"', '{"a": 1}', "[1]", "1" + "0" * 400])
def test_a_log_of_something_else_than_numbers_is_refused_before_it_is_drawn(tmp_path, value):
    folder = write(tmp_path, lines=20, steps=(20,))
    jsonl.append(folder / "timing.jsonl", {"iteration": 0})
    check_resumable(folder, every=20, iterations=60)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"iteration": 20, "reward/mean": {value}}}\n')
    with pytest.raises(ValueError, match=r"^metrics\.jsonl has a "):
        check_resumable(folder, every=20, iterations=60)


def test_a_linked_checkpoint_is_refused_and_never_used(tmp_path):
    folder = write(tmp_path, lines=45, steps=(20, 40)) / "checkpoints"
    shutil.move(folder / "step_000040", tmp_path / "elsewhere")
    (folder / "step_000040").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"step_000040 is refused: it is a link to .*/elsewhere"):
        check_resumable(tmp_path, every=20, iterations=60)
    assert find_newest_whole(folder).step == 20


def test_a_torn_checkpoint_is_left_to_those_who_look_for_a_whole_one(tmp_path):
    folder = write(tmp_path, lines=25, steps=(20,)) / "checkpoints"
    (folder / "step_000020" / "manifest.json").write_text("{")
    check_resumable(tmp_path, every=20, iterations=60)
    assert find_newest_whole(folder).path is None


@pytest.mark.parametrize("line", ['{"itera', "{}", '{"iteration": "1"}'])
@pytest.mark.parametrize("log", ["metrics.jsonl", "timing.jsonl", "evaluations.jsonl"])
def test_a_damaged_line_in_the_middle_is_refused(tmp_path, log, line):
    write(tmp_path, lines=3, steps=(2,))
    (tmp_path / log).write_text(f'{{"iteration": 0}}\n{line}\n{{"iteration": 2}}\n')
    with pytest.raises(jsonl.Damaged, match=f"{log}: line 2 is damaged"):
        check_resumable(tmp_path, every=2, iterations=60)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"id": "a"}', '{"starts": []}', "[" * 10**5])
def test_a_damaged_manifest_is_refused(tmp_path, text):
    write(tmp_path, lines=3, steps=(2,))
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged; restore a complete copy, or"):
        check_resumable(tmp_path, every=2, iterations=60)


@pytest.mark.parametrize("row", ["[]", "{", '{"kind": "eval", "prompt": "a"}'])
def test_a_damaged_table_of_samples_is_refused(tmp_path, row):
    (write(tmp_path, lines=3, steps=(2,)) / "samples").mkdir()
    (tmp_path / "samples" / "iteration_000000.jsonl").write_text(f"{row}\n")
    with pytest.raises(jsonl.Damaged, match=r"iteration_000000\.jsonl: line 1 is damaged"):
        check_resumable(tmp_path, every=2, iterations=60)
