import pytest

from tandem.record import jsonl
from tandem.record.summary import format_count, format_seconds, summarise

LINES = [
    {"iteration": 0, "samples": 0, "tokens": 0, "eval/accuracy": 0.25, "eval/pass@8": None},
    {"iteration": 1, "samples": 512, "tokens": 4096, "reward/mean": 0.3},
    {"iteration": 2, "samples": 1024, "tokens": 12345, "eval/accuracy": 0.75},
]
SOURCES = [
    {"eval/accuracy/easy": 0.5, "eval/accuracy/hard": 0.0, "eval/pass@8/hard": 0.125},
    {},
    {"eval/accuracy/easy": 1.0, "eval/accuracy/hard": 0.5, "eval/pass@8/hard": 1.0},
]
TABLE = """\
------------------------------------------
          iteration 0  iteration 2  change
------------------------------------------
accuracy        0.250        0.750  +0.500
pass@8              -            -
------------------------------------
      accuracy     ->  pass@8     ->
------------------------------------
easy     0.500  1.000       -      -
hard     0.000  0.500   0.125  1.000
2 iterations, 1.02k samples, 12.3k tokens in 1 min 15 s (7.2 s of CPU)
run directory: """


def test_the_table_compares_the_first_evaluation_with_the_last(tmp_path):
    for line, by_source in zip(LINES, SOURCES, strict=True):
        jsonl.append(tmp_path / "metrics.jsonl", line | by_source)
    jsonl.append(tmp_path / "timing.jsonl", {"iteration": 2, "time/total": 75.0, "time/cpu": 7.25})
    assert summarise(tmp_path) == f"{TABLE}{tmp_path}"


def test_a_run_without_sources_has_one_table(tmp_path):
    for line in LINES:
        jsonl.append(tmp_path / "metrics.jsonl", line)
    got = summarise(tmp_path).splitlines()
    assert got[:-1] == TABLE.splitlines()[:5]


def test_a_warning_about_the_ends_of_the_run_stands_below_the_table(tmp_path):
    for line in LINES:
        jsonl.append(tmp_path / "metrics.jsonl", line)

    def warn(first, last):
        return f"{first['eval/accuracy']} became {last['eval/accuracy']}"

    got = summarise(tmp_path, warn=warn).splitlines()
    assert got[:-2] == TABLE.splitlines()[:5]
    assert got[-2] == "warning: 0.25 became 0.75"
    assert summarise(tmp_path, warn=lambda first, last: None) == summarise(tmp_path)


def test_a_run_that_was_never_evaluated_has_no_table(tmp_path):
    assert summarise(tmp_path) == f"run directory: {tmp_path}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.31, "5.3 s"), (75, "1 min 15 s"), (119.7, "2 min 00 s"), (7500, "2 h 05 min")],
)
def test_durations_are_read_at_a_glance(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(950, "950"), (12_345, "12.3k"), (4.5e6, "4.5M"), (2e9, "2G")]
)
def test_amounts_are_read_at_a_glance(number, text):
    assert format_count(number) == text
