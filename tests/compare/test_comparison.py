"""The claims of a comparison table, and the claims that it does not make."""

import csv
import io
import re
import shutil
import sys

import numpy as np
import pytest
from scipy import stats
from written_runs import die, write_run, write_sweep

from tandem.compare import selection
from tandem.compare.__main__ import main
from tandem.compare.comparison import Request, compare
from tandem.compare.headline import write_meta, write_warnings
from tandem.compare.pairs import compare_all
from tandem.compare.scores import score_variant
from tandem.compare.selection import Selection
from tandem.compare.statistics.intervals import find_seeds_needed, paired_difference, welch
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import group_runs

METRIC = "eval/accuracy"
FAR = {"grpo": [0.80, 0.82, 0.81, 0.79], "rloo": [0.50, 0.53, 0.51, 0.49]}
NEAR = {"grpo": [0.80, 0.60, 0.70, 0.75], "rloo": [0.71, 0.66, 0.72, 0.61]}


def table(tmp_path, finals, **common):
    runs = [read(path) for path in find([write_sweep(tmp_path, finals, **common)])]
    return [score_variant(one, "eval/accuracy") for one in group_runs(runs)]


def test_a_difference_that_is_there_is_claimed(tmp_path):
    (pair,) = compare_all(table(tmp_path, FAR), METRIC)
    assert pair.verdict == "grpo beats rloo"
    assert pair.wins.wins == pair.wins.games == 4  # of the pairs of one seed, not of all 16


def spread_of(n, gap=0.02, noise=0.03):
    """Two variants, n seeds each, whose differences scatter around the gap."""
    random = np.random.default_rng(n)
    rloo = random.normal(0.7, 0.05, n)
    grpo = rloo + gap + random.normal(0, noise, n)
    return {"grpo": grpo.tolist(), "rloo": rloo.tolist()}


def test_a_difference_that_is_not_comes_with_a_range_of_seeds(tmp_path):
    """From the smallest to the largest spread that the chi-square law allows for so few seeds."""
    (pair,) = compare_all(table(tmp_path, spread_of(6, gap=0.0)), METRIC)
    gaps = np.subtract(*(side.scores for side in (pair.better, pair.other)))
    edges = [gaps.std(ddof=1) * np.sqrt(5 / stats.chi2.ppf(q, 5)) for q in (0.975, 0.025)]
    few, many = (find_seeds_needed(gaps.mean(), edge, paired=True) for edge in edges)
    size = f"{gaps.mean():.3f}"
    assert pair.verdict == (
        f"not distinguishable at n = 6; 80 % power at a true difference of {size} takes "
        f"n = {few} to {many}"
    )


def test_below_five_seeds_no_power_is_made_of_what_was_seen(tmp_path):
    (pair,) = compare_all(table(tmp_path, NEAR), METRIC)
    said = "not distinguishable at n = 4; run 5 seeds to estimate how many are needed"
    assert pair.verdict == said and pair.seeds_needed is None


def test_a_difference_that_was_named_has_its_power_from_three_seeds_on(tmp_path):
    (pair,) = compare_all(table(tmp_path, NEAR), METRIC, power_for=0.2)
    assert "a true difference of 0.200 takes n = " in pair.verdict
    three = {name: scores[:3] for name, scores in NEAR.items()}
    (pair,) = compare_all(table(tmp_path / "three", three), METRIC, power_for=0.05)
    assert pair.seeds_needed is not None
    two = {name: scores[:2] for name, scores in NEAR.items()}
    (pair,) = compare_all(table(tmp_path / "two", two), METRIC, power_for=0.05)
    assert pair.seeds_needed is None


def test_two_seeds_have_no_interval_no_p_and_no_r(tmp_path):
    """Student's interval of two seeds is 12.7 standard errors wide on either side."""
    finals = {"grpo": [0.8, 0.81], "rloo": [0.5, 0.52]}
    one, other = table(tmp_path, finals)
    assert (one.estimate.low, other.estimate.high) == (None, None)
    (pair,) = compare_all([one, other], METRIC)
    found = pair.difference
    assert (found.interval(), found.p, found.correlation, pair.simultaneous) == (None,) * 4
    said = "not distinguishable at n = 2; run at least 3 seeds, better 5"
    assert pair.verdict == said


def test_a_claim_stands_where_the_simultaneous_interval_leaves_out_0(tmp_path):
    """Over many random tables; the interval of a pair alone may exclude 0 without a claim."""
    random, alone = np.random.default_rng(3), 0
    for i in range(6):
        finals = {name: random.normal(0.5 + 0.02 * j, 0.03, 4) for j, name in enumerate("abcd")}
        finals = {name: scores.tolist() for name, scores in finals.items()}
        for pair in compare_all(table(tmp_path / str(i), finals), METRIC):
            low, high = pair.simultaneous
            assert pair.distinct == (low > 0) and high > 0
            inner = pair.difference.interval()
            assert low < inner[0] < inner[1] < high
            alone += inner[0] > 0 and not pair.distinct
    assert alone > 0


def test_one_seed_claims_nothing(tmp_path):
    (pair,) = compare_all(table(tmp_path, {"grpo": [0.9], "rloo": [0.1]}), METRIC)
    assert pair.verdict == "not distinguishable at n = 1; run at least 3 seeds, better 5"


def test_the_design_decides_what_is_paired(tmp_path):
    (pair,) = compare_all(table(tmp_path / "same", NEAR), METRIC)
    assert pair.difference == paired_difference(NEAR["grpo"], NEAR["rloo"])
    assert pair.test == "paired t"
    other = {"grpo": NEAR["grpo"], "rloo": NEAR["rloo"][:1]}
    (pair,) = compare_all(table(tmp_path / "other", other), METRIC)
    assert pair.difference == welch(other["grpo"], other["rloo"])
    assert pair.test == "Welch"


def test_a_lost_run_takes_its_own_pair_and_no_other(tmp_path):
    """The verdict uses the remaining pairs, although seeds differ more than variants."""
    rloo = [0.80, 0.20, 0.50, 0.35, 0.65, 0.40]
    gaps = [0.02, 0.03, 0.025, 0.02, 0.03, 0.02]
    grpo = [score + gap for score, gap in zip(rloo, gaps, strict=True)]
    (pair,) = compare_all(table(tmp_path, {"grpo": grpo, "rloo": rloo[:5]}), METRIC)
    assert pair.difference == paired_difference(grpo[:5], rloo[:5])
    assert pair.test == "paired t on 5 of 6 and 5 seeds"
    assert pair.verdict == "grpo beats rloo"


@pytest.mark.parametrize(("left", "test"), [(3, "paired t on 3 of 6 and 3 seeds"), (2, "Welch")])
def test_pairs_that_are_fewer_than_half_of_a_side_are_not_all_that_is_known(tmp_path, left, test):
    rloo = [0.80, 0.20, 0.50, 0.35, 0.65, 0.40]
    (pair,) = compare_all(table(tmp_path, {"grpo": [0.7] * 6, "rloo": rloo[:left]}), METRIC)
    assert pair.test == test


def test_what_the_pairs_say_is_said_of_the_right_one(tmp_path):
    """The mean over all seeds may say the opposite: the extra seed of one side was a lucky one."""
    grpo, rloo = [0.51, 0.41, 0.61, 0.31], [0.50, 0.401, 0.60, 0.301, 0.99]
    (pair,) = compare_all(table(tmp_path, {"rloo": rloo, "grpo": grpo}), METRIC)
    assert pair.verdict == "grpo beats rloo" and pair.difference.mean > 0
    assert pair.wins.games == 4 and pair.seeds == (4, 5)


@pytest.mark.parametrize("moment", ["before its first score", "before its record"])
def test_a_run_that_died_takes_its_own_pair_whenever_it_did(tmp_path, moment):
    """The mean of its variant is over other seeds, which the report says."""
    write_sweep(tmp_path, NEAR)
    if moment == "before its record":
        shutil.rmtree(tmp_path / "rloo-3")
    else:
        (tmp_path / "rloo-3" / "metrics.jsonl").unlink()
        die(tmp_path / "rloo-3")
    found = compare([read(path) for path in find([tmp_path])], Request(metric=METRIC))
    (pair,) = found.pairs
    assert pair.difference == paired_difference(NEAR["grpo"][:3], NEAR["rloo"][:3])
    assert pair.test == "paired t on 3 of 4 and 3 seeds"
    said = "rloo has no score for seed 3, unlike others: its mean is over other seeds."
    assert said in write_warnings(found)
    assert "n = 3 to 4 seeds each" in write_meta(found)


def test_too_few_pairs_with_scores_are_not_all_that_is_known(tmp_path):
    write_sweep(tmp_path, NEAR)
    for seed in (1, 2, 3):
        (tmp_path / f"rloo-{seed}" / "metrics.jsonl").unlink()
        die(tmp_path / f"rloo-{seed}")
    (pair,) = compare([read(path) for path in find([tmp_path])], Request(metric=METRIC)).pairs
    assert pair.test == "Welch"


def test_p_values_hold_for_the_whole_table(tmp_path):
    """Each is multiplied by the number of pairs."""
    random = np.random.default_rng(0)
    finals = {name: random.normal(0.5, 0.05, 4).tolist() for name in ("a", "b", "c", "d")}
    found = compare_all(table(tmp_path, finals), METRIC)
    assert len(found) == 6
    assert [p.adjusted for p in found] == pytest.approx([min(1, 6 * p.difference.p) for p in found])


def test_a_run_that_died_counts_with_the_score_it_had(tmp_path):
    write_run(tmp_path / "dead", [0.1], seed=0, iterations=9)
    write_run(tmp_path / "whole", [0.0, 0.9], seed=1, every=9)
    found = score_variant(
        group_runs([read(p) for p in find([tmp_path])], ["algorithm"])[0], "eval/accuracy"
    )
    assert found.estimate.mean == pytest.approx(0.5)
    assert (found.seeds_that("died"), found.without, found.worst) == ([0], [], (0, 0.1))


def test_a_score_from_before_a_last_evaluation_without_one_is_said_to_be_old(tmp_path):
    """Such as that of a run whose rewards were lost, or that broke down, at its end."""
    nan = float("nan")
    write_run(tmp_path / "lost", [0.0, 0.2, 0.7, nan], seed=0)
    write_run(tmp_path / "whole", [0.0, 0.1, nan, 0.3], seed=1)
    found = compare([read(path) for path in find([tmp_path])], Request(by=["algorithm"]))
    assert found.variants[0].scores == [0.7, 0.3]
    said = "seed 0: the last value is missing, so that of iteration 2 counts"
    assert [note for note in found.tables[0].notes if "seed 1" in note] == []
    assert said in found.tables[0].notes[0]
    assert write_warnings(found) == [f"grpo {said}."]
    best = selection.candidate(found.variants[0])
    chosen = Selection(metric=METRIC, candidates=[best], silent=[], overrides=[], fresh=[])
    assert f"When chosen, {said}." in selection.table(chosen).notes


def hide_scores(run) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace(METRIC, "loss"))


def test_a_run_without_the_metric_of_the_others_is_named_and_does_not_count(tmp_path, capsys):
    write_sweep(tmp_path, {"grpo": [0.8, 0.7], "rloo": [0.5, 0.4], "sft": [0.0]})
    hide_scores(tmp_path / "sft-0")
    hide_scores(tmp_path / "grpo-1")
    main([str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "grpo: seed 1 without a score; sft: no run has a score" in said
    hide_scores(tmp_path / "grpo-0")
    with pytest.raises(SystemExit):  # most runs lack it now
        main([str(tmp_path)])
    assert f"({tmp_path}/grpo-0 has no eval/accuracy, {tmp_path}" in capsys.readouterr().err


def test_while_a_run_goes_on_nothing_is_claimed(tmp_path, monkeypatch, capsys):
    """Neither in the table nor on the page; pairs of finished runs keep their claims."""
    write_sweep(tmp_path, FAR | {"ppo": [0.1, 0.11, 0.12]}, every=9)
    write_run(tmp_path / "ppo-3", [0.1], seed=3, algorithm="ppo", iterations=9, going=True)
    run_command(monkeypatch, tmp_path, f"out={tmp_path / 'out'}")
    printed = " ".join(capsys.readouterr().out.split())
    assert "grpo beats rloo" in printed
    assert (
        printed.count("not known yet: 1 of 8 runs is still running") == 2
        and "beats ppo" not in printed
    )
    assert "ppo: seed 3 is still running" in printed and "seed 3 died" not in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert "So far: 1 of 12 runs is still running." in page and "beats ppo" not in page


def run_command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["compare", *map(str, arguments)])
    main(sys.argv[1:])


def test_the_command_prints_and_writes_one_set_of_tables(tmp_path, monkeypatch, capsys):
    write_sweep(tmp_path / "sweep", FAR)
    run_command(monkeypatch, tmp_path / "sweep", "by=algorithm", f"out={tmp_path / 'tables'}")
    printed = capsys.readouterr().out
    assert re.search(r"^grpo +4 +0.805 ", printed, re.M)
    assert "It beats rloo by 0.297 [0.290, 0.305]." in " ".join(printed.split())
    rows = list(csv.reader(io.StringIO((tmp_path / "tables" / "scores.csv").read_text())))
    assert rows[1][:3] == ["variant", "n", "mean"] and rows[2][2] == "0.805"
    latex = (tmp_path / "tables" / "differences.tex").read_text()
    assert r"\toprule" in latex and "grpo beats rloo" in latex
    assert "| grpo | 4 | 0.805 |" in (tmp_path / "tables" / "scores.md").read_text()


def test_what_an_older_report_wrote_alone_goes_and_a_user_s_file_stays(tmp_path, monkeypatch):
    write_sweep(tmp_path / "sweep", FAR)
    out = tmp_path / "out"
    run_command(monkeypatch, tmp_path / "sweep", "by=algorithm", f"out={out}")
    assert (out / "differences.csv").exists()
    (out / "own.csv").touch()
    alone = next((tmp_path / "sweep").rglob("metrics.jsonl")).parent
    run_command(monkeypatch, alone, f"out={out}")
    left = {path.name for path in out.iterdir()}
    assert not {"differences.md", "differences.csv", "differences.tex"} & left
    assert {"own.csv", "report.html", "scores.csv"} <= left
    page = out / "report.html"
    page.write_text(page.read_text().replace('"scores"', '"own"'))  # another user's page
    run_command(monkeypatch, alone, f"out={out}")
    assert (out / "own.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["out="], "out= is empty: give a value, or leave it out"),
        (["by=algorithm", "by=seed"], "by= is given twice, as by=algorithm and by=seed"),
        (["metrc=x"], "unknown option 'metrc': did you mean 'metric'?"),
        (["foo=bar"], "unknown option 'foo': there are by, task, metric, x, "),
        (["--bogus"], "unknown flag '--bogus': there are --help, by=..., task=..., metric=..., "),
        (["--metrc", "x"], "unknown flag '--metrc': did you mean metric=...?"),
        (["--out=x"], "unknown flag '--out': did you mean out=...?"),
        (["--hlep"], "unknown flag '--hlep': did you mean --help?"),
        (["metric=eval/acuracy"], "no run has it; did you mean 'eval/accuracy'?"),
        (["metric=foo"], "metric=foo: no run has it; evaluations have eval/accuracy"),
        (["by=loss"], "by=loss: no run has such a choice or key"),
        (["x=token"], "x=token is no axis; did you mean 'tokens'?"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path, monkeypatch, capsys, arguments, line):
    write_sweep(tmp_path, FAR)
    with pytest.raises(SystemExit) as exit:
        run_command(monkeypatch, tmp_path, *arguments)
    said = capsys.readouterr().err.strip()
    assert exit.value.code == 2 and line in said and "\n" not in said


def test_seeds_that_all_agree_prove_nothing(tmp_path):
    """Even if 0.2 - 0.1 differs from 0.3 - 0.2 in the last digit."""
    (pair,) = compare_all(
        table(tmp_path, {"grpo": [0.2, 0.3, 0.7], "rloo": [0.1, 0.2, 0.6]}), METRIC
    )
    said = "not distinguishable at n = 3; all seeds agree, so the spread is unknown"
    assert pair.verdict == said


def test_of_a_length_nobody_knows_what_is_better(tmp_path):
    (pair,) = compare_all(table(tmp_path, FAR), "response/length")
    assert pair.verdict == "grpo is above rloo"


def test_a_variant_whose_runs_all_died_at_once_stays_in_the_table(tmp_path, monkeypatch, capsys):
    write_sweep(tmp_path, FAR)
    for seed in (0, 1):
        place = write_run(tmp_path / f"ppo-{seed}", [0.0, 0.1], seed=seed, algorithm="ppo")
        (place / "metrics.jsonl").unlink()
        die(place)
    run_command(monkeypatch, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "ppo 0 - - - -" in printed
    assert "ppo: no run has a score, 2 died" in printed
    assert "grpo beats rloo" in printed


def test_an_out_that_is_a_file_is_one_line(tmp_path, monkeypatch, capsys):
    write_sweep(tmp_path / "sweep", FAR)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        run_command(monkeypatch, tmp_path / "sweep", f"out={tmp_path / 'file'}")
    assert "\n" not in capsys.readouterr().err.strip()
