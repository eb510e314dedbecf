"""The lines at the end of a run that a guard or a signal ended."""

import pytest
import torch

from tandem.launch.stops import stops
from tandem.record.stopped import describe_stop
from tandem.stop import INTERRUPTED, Stop, command_to_resume


@pytest.fixture
def run_dir(tmp_path):
    for folder in ("samples", "checkpoints/step_000020", "wandb/offline-run-1-abc"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0}\n' * 23)
    for name in ("iteration_000000.jsonl", "iteration_000020.jsonl"):
        (tmp_path / "samples" / name).touch()
    return tmp_path


def test_a_stopped_run_says_what_it_left_and_how_to_go_on(run_dir):
    stop = Stop("ties", change="guards.no_signal=10", page="docs/debugging.md#symptoms")
    assert describe_stop(run_dir, stop).splitlines() == [
        f"run directory: {run_dir}",
        "saved       lines of metrics.jsonl: 23; newest checkpoint: step_000020",
        f"samples     {run_dir}/samples/iteration_000020.jsonl",
        f"go on       {command_to_resume(run_dir)} guards.no_signal=10",
        "help        docs/debugging.md#symptoms",
        f"to W&B      wandb sync {run_dir}/wandb/offline-run-1-abc",
    ]


def test_pictures_are_named_instead_of_their_table(run_dir):
    (run_dir / "samples/iteration_000020.png").touch()
    assert f"samples     {run_dir}/samples/iteration_000020.png\n" in describe_stop(run_dir)


def test_a_command_that_the_reason_already_has_is_not_repeated(run_dir):
    said = describe_stop(run_dir, Stop(f"disk full; go on with: {command_to_resume(run_dir)}"))
    assert "go on" not in said and "help        docs/debugging.md\n" in said


def test_a_run_that_was_interrupted_shows_what_it_left(run_dir, capsys):
    with pytest.raises(SystemExit), stops(run_dir):
        raise SystemExit(INTERRUPTED)
    said = capsys.readouterr().out
    assert "newest checkpoint: step_000020" in said and "go on" not in said


def test_a_run_that_wrote_nothing_adds_no_line(tmp_path, capsys):
    with pytest.raises(SystemExit), stops(tmp_path):
        raise Stop("ties")
    assert capsys.readouterr() == ("", "stopped: ties\n")


def failing(module: str):
    """A function of a module of this name that raises what gloo raises if a rank has ended."""
    scope = {"__name__": module}
    exec("def fail(): raise RuntimeError('[pair.cc:553] Connection closed by peer [::1]:1')", scope)
    return scope["fail"]


@pytest.mark.parametrize(
    "module",
    ["torch.distributed.distributed_c10d", "torch.nn.parallel.distributed", "torch.autograd.graph"],
)
def test_a_rank_that_lost_another_one_does_not_print_a_traceback_of_its_own(
    run_dir, capsys, module
):
    with pytest.raises(SystemExit) as ended, stops(run_dir):
        failing(module)()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.err == "stopped: another rank ended, and its error is above or in its own log\n"
    assert f"go on       {command_to_resume(run_dir)}\n" in said.out


def test_an_error_of_other_code_keeps_its_traceback(run_dir):
    with pytest.raises(RuntimeError, match="by peer"), stops(run_dir):
        failing("my_rewards")()


def test_a_run_out_of_memory_names_what_to_lower_below_its_traceback(run_dir, capsys):
    with pytest.raises(SystemExit) as ended, stops(run_dir):
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
    said = capsys.readouterr()
    assert ended.value.code == 1
    traceback, _, reason = said.err.partition("OutOfMemoryError: Tried to allocate 2.00 GiB\n")
    assert traceback.startswith("Traceback") and reason.startswith("stopped: out of memory; ")
    assert "rollout.max_rows" in reason and "max_tokens_per_microbatch" in reason
    assert f"go on       {command_to_resume(run_dir)}\n" in said.out
    assert "help        docs/memory.md\n" in said.out


def test_exit_in_the_code_of_a_user_is_no_finished_run(run_dir, tmp_path, capsys):
    file = tmp_path / "my_loss.py"
    scope = {}
    exec(compile("def leave():\n    raise SystemExit(0)", file, "exec"), scope)
    with pytest.raises(SystemExit) as ended, stops(run_dir):
        scope["leave"]()
    said = capsys.readouterr()
    assert ended.value.code == 1 and "go on" in said.out
    assert said.err.startswith("stopped: exit(0) was called at ")
    assert said.err.endswith("my_loss.py:2; raise tandem.stop.Stop(REASON) there\n")
