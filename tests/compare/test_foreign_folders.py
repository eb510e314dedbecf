"""An untrusted folder read beside one's own: named, left out, and never obeyed."""

import os
import re

import pytest
from spoilt_runs import OF_COMPARE, SPOILS, spoil_config, spoil_json
from written_runs import write_prompts, write_run

from tandem.compare.__main__ import main
from tandem.config import ConfigError, configuration
from tandem.record import foreign
from tandem.record.reading.runs import read, read_all


@pytest.mark.parametrize(
    "spoil", [*SPOILS.values(), *OF_COMPARE.values()], ids=[*SPOILS, *OF_COMPARE]
)
def test_what_cannot_be_read_is_named_and_left_out(folder, spoil):
    spoil(folder / "odd")
    odd = folder / "odd"
    found, left_out = read_all([folder / "good0", odd, folder / "good1"])
    assert [run.seed for run in found] == [0, 1]
    assert len(left_out) == 1 and "\n" not in left_out[0] and len(left_out[0]) < 400
    assert left_out[0].startswith(f"left out: {odd} cannot be read as a run (")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda run: spoil_json(run, starts=[]),
            "manifest.json: starts must be a list of at least",
        ),
        (lambda run: spoil_json(run, starts=[{}]), "manifest.json: a start has no code"),
        (lambda run: spoil_json(run, starts=[1]), "manifest.json: a start is not a JSON object"),
        (
            lambda run: spoil_json(run, starts=[{"code": {}}]),
            "manifest.json: the code of a start has no commit",
        ),
        (lambda run: (run / "manifest.json").write_text("{}"), "manifest.json has no starts"),
        (
            lambda run: (run / "manifest.json").write_text(""),
            "manifest.json is not JSON: Expecting",
        ),
        (lambda run: (run / "job.json").write_text("{}"), "job.json has no code"),
        (
            lambda run: (run / "config.yaml").write_text("seed: 2\n"),
            "config.yaml has no iterations",
        ),
        (
            lambda run: spoil_config(run, "iterations: -5\n"),
            "config.yaml: iterations must be a whole number from 0 to 9,007,199,254,740,991",
        ),
        (
            lambda run: spoil_config(run, "x: [tiny\n"),
            "config.yaml is not YAML: while parsing a flow sequence; did not find expected",
        ),
        (
            lambda run: spoil_config(run, "guards: {judges: 5}\n"),
            "config.yaml: guards.judges must be a list of names",
        ),
        (
            lambda run: (run / "evaluations.jsonl").write_text('{"iteration": 1}\n'),
            "a line of evaluations.jsonl has no prompts",
        ),
        *(
            (
                lambda run, value=value: (run / "metrics.jsonl").write_text(
                    f'{{"iteration": 0, "eval/accuracy": {value}}}\n'
                ),
                "metrics.jsonl has a number above 1e+60",
            )
            for value in ("1e+300", "-1.7e308", "1e+61", "1" + "0" * 400)
        ),
        (
            lambda run: (run / "evaluations.jsonl").write_text(
                '{"iteration": 1, "prompts": [1], "sources": ["a"], "eval/accuracy": [1e300]}\n'
            ),
            "evaluations.jsonl has eval/accuracy that is above 1e+60",
        ),
    ],
)
def test_why_a_run_is_left_out_is_said_in_words(folder, spoil, why):
    spoil(folder / "odd")
    _, [said] = read_all([folder / "good0", folder / "odd"])
    assert said.startswith(f"left out: {folder / 'odd'} cannot be read as a run ({why}")
    assert "Error" not in said


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [9e59, 5e-324])
def test_the_largest_and_smallest_numbers_are_compared_without_a_warning(folder, value):
    for seed in range(3):
        write_run(
            folder / f"large{seed}", [0.1, value * (1 - seed / 9)], seed=seed, algorithm="ppo"
        )
    main([str(folder), f"out={folder / 'report'}"])
    assert (folder / "report" / "scores.pdf").exists()


def test_a_number_of_updates_that_is_none_does_not_end_the_comparison(folder, capsys):
    spoil_config(folder / "odd", "epochs: 2\nnum_minibatches: null\n")
    main([str(folder)])
    assert capsys.readouterr().out.startswith("epochs=2 has the highest eval/accuracy")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_or_file_is_named(folder, capsys):
    (folder / "good1" / "samples").mkdir(exist_ok=True)
    table = folder / "good1" / "samples" / "iteration_000001.jsonl"
    table.touch()
    table.chmod(0)
    (folder / "odd").chmod(0)
    main([str(folder)])
    (folder / "odd").chmod(0o700)
    said = capsys.readouterr().err
    assert f"left out: {folder / 'odd'} cannot be read" in said
    assert "(iteration_000001.jsonl may not be read by this user)" in said


def test_of_a_file_that_a_log_links_to_nothing_is_quoted(folder):
    (folder / "own").write_text("root:secret\n")
    (folder / "odd" / "metrics.jsonl").unlink()
    (folder / "odd" / "metrics.jsonl").symlink_to(folder / "own")
    _, left_out = read_all([folder / "good0", folder / "odd"])
    assert "metrics.jsonl has a line that is not a JSON object of numbers" in left_out[0]
    assert "secret" not in left_out[0]


def test_a_comparison_says_what_it_left_out(folder, capsys):
    SPOILS["an alias bomb"](folder / "odd")
    main([str(folder)])
    said = capsys.readouterr()
    assert said.err.startswith(f"left out: {folder}/odd cannot be read as a run (conf")
    assert re.search(r"^grpo +2 ", said.out, re.M) and "left out:" in said.out


def test_a_damaged_line_before_the_last_leaves_out_its_run_alone(folder, capsys):
    """Only lines that the comparison needs are read, so it is found while comparing."""
    for name in ("good0", "good1", "odd"):
        for iteration in (0, 1, 2):
            write_prompts(folder / name, [0.1, 0.3], iteration=iteration)
    path = folder / "odd" / "evaluations.jsonl"
    first, scored, last = path.read_text().splitlines()
    path.write_text("\n".join([first, scored.replace("sources", "sorces"), last, ""]))
    main([str(folder)])
    said = capsys.readouterr()
    why = "cannot be read as a run (a line of evaluations.jsonl has no sources)"
    assert said.err == f"left out: {folder}/odd {why}\n"
    assert re.search(r"^grpo +2 ", said.out, re.M) and "left out:" in said.out
    with pytest.raises(SystemExit):
        main([str(folder / "odd")])
    assert capsys.readouterr().err == f"{folder}/odd {why}\n"


@pytest.mark.parametrize("value", ["NaN", "-Infinity"])
def test_what_is_not_finite_is_none(folder, value):
    line = f'{{"iteration": 1, "eval/accuracy": {value}, "eval/reward": 1}}\n'
    (folder / "odd" / "metrics.jsonl").write_text(line)
    run = read(folder / "odd")
    assert run.score("eval/accuracy") is None and run.score("eval/reward") == 1.0


def test_nothing_to_compare_is_an_error(folder, capsys):
    SPOILS["an alias bomb"](folder / "odd")
    with pytest.raises(SystemExit):
        main([str(folder / "odd")])
    assert "cannot be read as a run" in capsys.readouterr().err


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_run_that_cannot_be_read_does_not_go_on(folder, spoil):
    spoil(folder / "odd")
    with pytest.raises(ConfigError) as refused:
        configuration([f"resume={folder / 'odd'}"])
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    assert str(refused.value).startswith(f"resume={folder / 'odd'}: it cannot be read as a run (")


def test_a_file_as_large_as_is_allowed_is_read(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", [0.1, 0.2])
    size = (run / "config.yaml").stat().st_size
    monkeypatch.setattr(foreign, "CONFIG_BYTES", size)
    assert read(run).seed == 0
    monkeypatch.setattr(foreign, "CONFIG_BYTES", size - 1)
    with pytest.raises(ValueError, match=rf"config\.yaml has {size} bytes, more than {size - 1}"):
        read(run)
