"""The report page as users see it: opened in Debian's Chromium, read, clicked, photographed.

`TANDEM_SCREENSHOTS=FOLDER pytest -q tests/compare/test_page_in_chromium.py` keeps the images.
"""

import json
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import chromium
import pytest
import showcase
from written_runs import wordy, write_run, write_task

from tandem.compare import expected_bands
from tandem.compare.comparison import Request, compare
from tandem.compare.report import live
from tandem.compare.report.write import write_report
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import group_runs
from tandem.record.run_record import RunRecord

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        chromium.PROGRAM is None,
        reason="no chromium here: `apt-get install chromium` lets the report be looked at",
    ),
]

FORMS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
MENU = "document.querySelector('nav')"
PATHS = "[...document.querySelectorAll('#curve path.mean')].map((p) => p.getAttribute('d'))"


def page(folder, name, **asked):
    runs = [read(path) for path in find([folder / name])]
    place = folder / f"{name}.html"
    place.write_text(write_report(compare(runs, Request(**asked)), name))
    return place.as_uri()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Texts with a band that a run leaves, images, and several tasks."""
    folder = tmp_path_factory.mktemp("pages")
    showcase.language(folder / "language", seeds=10)
    showcase.flows(folder / "flows", seeds=2)
    for i in range(4):
        finals = {
            name: [0.2 * i + 0.03 * (seed + j) for seed in range(5)]
            for j, name in enumerate(("grpo", "rloo"))
        }
        write_task(folder / "tasks", f"task{i}", finals)
    kept = group_runs([read(path) for path in find([folder / "language"])])
    expected_bands.save(folder / "kept", kept, "eval/accuracy")
    showcase.newcomers(folder / "newcomers")
    showcase.many(folder / "many")
    asked = {"experiment": expected_bands.load(folder / "kept")}
    return {
        "language": page(folder, "language"),
        "flows": page(folder, "flows"),
        "tasks": page(folder, "tasks"),
        "many": page(folder, "many"),
        "newcomers": page(folder, "newcomers", **asked),
    }


@pytest.fixture(scope="module")
def browser():
    found = chromium.Chromium()
    yield found
    found.close()


def complaints(browser):
    """Errors in the page, and requests for anything but itself and its images."""
    said = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    found = [event for event in browser.events if event.get("method") in said]
    for event in browser.events:
        if event.get("method") == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            found += [] if url.startswith(("data:image/png;base64,", "file:///")) else [url]
    return found


def open_page(browser, url):
    browser.events.clear()
    browser.look(1280, 900, "light")
    browser.open(url)


@pytest.mark.parametrize("name", ["language", "flows", "newcomers", "tasks", "many"])
def test_it_looks_right_light_and_dark_wide_and_narrow(browser, pages, name):
    """Nothing overflows the edge, no chart contains NaN, nothing is requested."""
    open_page(browser, pages[name])
    papers = set()
    for width, scheme in FORMS:
        browser.look(width, 900, scheme)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelector('#curve svg').clientWidth") < width
        assert browser.run(f"{MENU}.scrollWidth <= {MENU}.clientWidth")  # every entry is seen
        drawn = browser.run("[...document.querySelectorAll('.chart svg')].map((s) => s.outerHTML)")
        assert len(drawn) >= 2 and not any("NaN" in svg or "Infinity" in svg for svg in drawn)
        papers.add((scheme, browser.run("getComputedStyle(document.body).backgroundColor")))
        if "TANDEM_SCREENSHOTS" in os.environ:
            folder = Path(os.environ["TANDEM_SCREENSHOTS"])
            browser.screenshot(folder / f"{name}-{width}-{scheme}.png")
    assert len(papers) == 2
    assert not complaints(browser)


def test_another_axis_and_metric_draw_another_chart(browser, pages):
    open_page(browser, pages["language"])
    before = browser.run(PATHS)
    assert len(before) == 4 and all(path.count("L") == 12 for path in before)
    labels = "[...document.querySelectorAll('#curve text')].map((t) => t.textContent)"
    assert "iterations" in browser.run(labels)
    browser.run("document.querySelector('[data-choice=tokens]').click()")
    assert "tokens" in browser.run(labels) and "30k" in browser.run(labels)
    browser.run("""{ const metric = document.getElementById("metric");
        metric.value = "reward/mean"; metric.dispatchEvent(new Event("change")); }""")
    assert "reward/mean" in browser.run(labels) and browser.run(PATHS) != before
    assert not complaints(browser)


def test_seeds_end_at_their_own_tokens_and_the_mean_between_them(browser, tmp_path):
    for seed, times in ((0, 1), (1, 10)):
        wordy(write_run(tmp_path / "runs" / str(seed), [0.0, 0.2, 0.4], seed=seed), times)
    open_page(browser, page(tmp_path, "runs"))
    browser.run("document.querySelector('[data-choice=tokens]').click()")
    ends = "[...document.querySelectorAll('#curve path.seed, #curve path.mean')]"
    last = f"{ends}.map((p) => parseFloat(p.getAttribute('d').split('L').pop()))"
    start = f"parseFloat({ends}[0].getAttribute('d').slice(1))"
    zero, (few, many, mean) = browser.run(start), browser.run(last)
    assert (many - zero) / (few - zero) == pytest.approx(10, rel=0.02)
    assert mean == pytest.approx((few + many) / 2, abs=0.2)


def test_a_chart_of_very_many_points_is_drawn(browser, pages):
    """As arguments of one call they would be too many."""
    open_page(browser, pages["language"])
    many = "Array.from({ length: 300000 }, (_, i) => i)"
    place = "document.getElementById('curve')"
    ends = "((f) => [f.x0, f.x1])"
    assert browser.run(f"{ends}(frame({place}, {many}, {many}, ['a', 'b']))") == [0, 299999]


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (0.9956, 0.9968, ["0.9956", "0.9958", "0.996", "0.9962", "0.9964", "0.9966", "0.9968"]),
        (117.6, 118.2, ["117.6", "117.7", "117.8", "117.9", "118", "118.1", "118.2"]),
        (0, 30000, ["0", "5000", "10k", "15k", "20k", "25k", "30k"]),
        (20010, 20040, ["20.01k", "20.015k", "20.02k", "20.025k", "20.03k", "20.035k", "20.04k"]),
        (-0.2, 1.0, ["-0.2", "0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (2e6, 5e6, ["2M", "2.5M", "3M", "3.5M", "4M", "4.5M", "5M"]),
    ],
)
def test_the_marks_of_an_axis_have_the_digits_in_which_they_differ(browser, pages, low, high, want):
    open_page(browser, pages["language"])
    place = "document.getElementById('curve')"
    browser.run(f"""{place}.replaceChildren(
        frame({place}, [{low}, {high}], [{low}, {high}], ["a", "b"]).svg)""")
    assert texts(browser, "#curve text[text-anchor=middle]")[:-1] == want
    rows = texts(browser, "#curve text[text-anchor=end]")
    assert len(set(rows)) == len(rows) >= 3


def test_the_marks_of_final_scores_and_differences_have_the_digits_in_which_they_differ(
    browser, tmp_path
):
    for seed in range(3):
        for name, last in (("grpo", 0.9956), ("rloo", 0.9966)):
            place = tmp_path / "runs" / f"{name}{seed}"
            write_run(place, [0.0, last + 0.0001 * seed], algorithm=name, seed=seed)
    open_page(browser, page(tmp_path, "runs"))
    for selector in ("#finals text[text-anchor=middle]", ".axis span"):
        marks = texts(browser, selector)
        assert len(set(marks)) == len(marks) >= 3


def test_a_variant_is_hidden_and_comes_back(browser, pages):
    open_page(browser, pages["language"])
    for left in (3, 4):
        browser.run("document.querySelector('#legend button').click()")
        assert len(browser.run(PATHS)) == left


def test_curves_are_read_by_arrow_keys_with_n_beside_them(browser, pages):
    """At the end one seed of ten is dead, and counts."""
    open_page(browser, pages["language"])
    browser.run("document.getElementById('curve').focus()")
    browser.key("ArrowLeft")
    said = browser.run("document.querySelector('#curve .tip').innerText")
    assert "60 iterations" in said and "n = 10, 9 got here" in said
    assert said.index("dapo") < said.index("grpo") < said.index("reinforce")
    browser.key("Escape")
    assert browser.run("document.querySelector('#curve .tip').hidden")


def count(browser, selector):
    return browser.run(f"document.querySelectorAll('{selector}').length")


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll('{selector}')].map((t) => t.textContent)")


def test_a_claim_is_drawn_clear_of_0_and_what_is_open_across_it(browser, pages):
    """By the thick, simultaneous interval; each row also has the thin one, and a shared axis."""
    open_page(browser, pages["language"])
    assert count(browser, ".pairs li.claim, .pairs li.open") == 6
    assert count(browser, ".difference .together") == 6
    assert count(browser, ".difference line.alone") == 3 * 6  # with both ends
    left = "parseFloat(row.querySelector('.together').getAttribute('x1'))"
    zero = "parseFloat(row.querySelector('.zero').getAttribute('x1'))"
    clear = f"rows.map((row) => [row.className === 'claim', {left} > {zero}])"
    rows = "((rows) => " + clear + ")([...document.querySelectorAll('.pairs li:not(.scale)')])"
    found = browser.run(rows)
    assert {True, False} == {claim for claim, _ in found}
    assert all(claim == is_clear for claim, is_clear in found)
    assert "0" in texts(browser, ".axis span") and len(texts(browser, ".axis span")) >= 3


def test_the_dots_of_a_seed_are_joined_where_the_design_pairs_them(browser, pages):
    open_page(browser, pages["language"])
    assert count(browser, "#finals line.pair") == 3 * 10  # between four rows
    open_page(browser, pages["tasks"])
    assert count(browser, "#finals line.pair") == 4 * 5  # within a task, never between two


def test_from_five_seeds_on_the_lines_of_seeds_are_drawn_on_demand(browser, pages):
    open_page(browser, pages["flows"])  # two seeds
    assert count(browser, "#curve path.seed") == 4
    open_page(browser, pages["language"])  # ten
    assert count(browser, "#curve path.seed") == 0
    browser.run("document.querySelector('[data-switch=seeds]').click()")
    assert count(browser, "#curve path.seed") == 40


def test_variants_stand_by_rank_everywhere(browser, pages):
    open_page(browser, pages["language"])
    ranked = browser.run("data.variants.map((v) => v.name)")
    means = browser.run("data.variants.map((v) => v.mean)")
    assert means == sorted(means, reverse=True)
    assert texts(browser, "#legend .chip") == texts(browser, "#finals text.name") == ranked


def test_of_twenty_variants_the_best_is_laid_beside_each_and_eight_curves_are_drawn(browser, pages):
    open_page(browser, pages["many"])
    assert count(browser, ".pairs li.claim, .pairs li.open") == 19
    assert count(browser, "#curve path.mean") == 8
    browser.run("document.querySelector('#legend button:last-child').click()")
    assert count(browser, "#curve path.mean") == 20
    browser.run("document.querySelector('#claims > button').click()")
    assert count(browser, ".pairs li.claim, .pairs li.open") == 190


def test_what_to_run_next_and_what_else_differs_stand_on_top(browser, pages):
    open_page(browser, pages["many"])
    said = browser.run("document.getElementById('advice').innerText")
    assert "The variants also differ in: warm-up" in said
    assert "Next: " in said


TEXT = "document.querySelector('#shown pre').textContent"
PICTURE = "document.querySelector('#shown img').src"


@pytest.mark.parametrize(
    ("name", "shown", "moments"), [("language", TEXT, 13), ("flows", PICTURE, 4)]
)
def test_the_slider_goes_through_training(browser, pages, name, shown, moments):
    open_page(browser, pages[name])
    last = browser.run(shown)
    browser.run("document.getElementById('slider').focus()")
    browser.key("Home")
    assert browser.run("document.getElementById('at').textContent") == "iteration 0"
    assert browser.run(shown) != last
    browser.key("End")
    assert browser.run(shown) == last
    browser.run("document.getElementById('timeline').click()")
    assert browser.run("document.querySelectorAll('#shown tbody tr').length") == moments
    assert not complaints(browser)


def test_where_no_prompt_is_shared_the_samples_say_so(browser, tmp_path):
    for name in ("grpo", "rloo"):
        place = write_run(tmp_path / "runs" / name, [0.0, 0.2], algorithm=name)
        row = {"kind": "eval", "prompt": f"of {name}", "output": "?", "reward": 0.5}
        RunRecord(place).samples(0, [row])
    open_page(browser, page(tmp_path, "runs"))
    said = browser.run("document.querySelector('#samples').innerText")
    assert "the variants have no prompt in common" in said
    assert not complaints(browser)


def test_what_a_model_wrote_is_shown_and_not_obeyed(browser, pages):
    open_page(browser, pages["language"])
    browser.run("document.getElementById('slider').focus()")
    browser.key("Home")
    assert "<i>" in browser.run(TEXT)
    assert browser.run("document.querySelectorAll('#shown pre *').length") == 0


def test_a_table_sorts_by_its_numbers(browser, pages):
    open_page(browser, pages["language"])
    firsts = "[...document.querySelectorAll('#table-scores tbody tr td:first-child')]"
    names = f"{firsts}.map((cell) => cell.textContent)"
    press = "document.querySelectorAll('#table-scores th button')[2].click()"
    browser.run(press)
    falling = browser.run(names)
    browser.run(press)
    assert browser.run(names) == falling[::-1] and falling[-1] == "reinforce"


def test_the_verdict_is_in_view_where_its_table_is_wider_than_the_page(browser, pages):
    open_page(browser, pages["language"])
    edges = browser.run("""(() => {
      const folded = document.querySelector("#table-differences");
      folded.open = true;
      const view = folded.querySelector(".scroll"), cell = folded.querySelector("td.verdict");
      const right = (node) => node.getBoundingClientRect().right;
      return [view.scrollWidth > view.clientWidth, right(cell) <= right(view)];
    })()""")
    assert edges == [True, True]


def test_a_table_stays_sorted_by_a_column_that_moves_and_not_by_one_that_is_gone(browser, pages):
    open_page(browser, pages["language"])

    def names(columns, *rows):
        table = {"name": "of", "title": "of", "notes": [], "columns": columns, "rows": rows}
        browser.run(f"data.tables = [{json.dumps(table)}]; render();")
        return texts(browser, "#table-of tbody td:first-child")

    both = ["name", "a", "b"], ["x", "3", "1"], ["y", "1", "2"], ["z", "2", "3"]
    assert names(*both) == ["x", "y", "z"]
    browser.run("document.querySelectorAll('#table-of th button')[2].click()")
    assert names(*both) == ["z", "y", "x"]
    assert names(["name", "b"], ["x", "1"], ["y", "2"], ["z", "3"]) == ["z", "y", "x"]
    assert names(["name", "a"], ["x", "3"], ["y", "1"], ["z", "2"]) == ["x", "y", "z"]
    assert count(browser, "#table-of th[aria-sort=none]") == 2
    twice = ["name", "a", "a"], ["x", "1", "3"], ["y", "2", "1"], ["z", "3", "2"]
    assert names(*twice) == ["x", "y", "z"]
    browser.run("document.querySelectorAll('#table-of th button')[2].click()")
    assert names(*twice) == ["x", "z", "y"]


def test_runs_are_drawn_beside_their_band(browser, pages):
    open_page(browser, pages["newcomers"])
    assert browser.run("document.querySelectorAll('path.expected').length") == 2
    assert browser.run("document.querySelectorAll('circle.outside').length") > 0
    said = browser.run("document.querySelector('#bands').innerText")
    assert "inside at all 13 points" in said and "outside from iteration" in said
    assert "different configuration: optimizer.lr is 0.0003, expected 0.0001" in said


def test_profiles_over_many_tasks_are_drawn(browser, pages):
    open_page(browser, pages["tasks"])
    assert browser.run("document.querySelectorAll('#profile path.mean').length") == 2
    assert "rloo, n = 20 scores" in browser.run("document.querySelector('#tasks').textContent")
    assert browser.run("document.querySelectorAll('#table-tasks').length") == 1


def test_the_button_turns_the_light_on_and_off(browser, pages):
    open_page(browser, pages["language"])
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(paper) != light


def test_a_served_page_grows_and_keeps_what_is_looked_at(browser, tmp_path):
    run = write_run(tmp_path / "grpo-0", [0.1, 0.5], iterations=9)
    watched = live.Watched([str(tmp_path)], lambda runs: compare(runs, Request()))
    with live.Server(watched, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open_page(browser, server.url)
        browser.run("document.querySelector('[data-choice=samples]').click()")
        browser.run("document.querySelector('#legend button').click()")
        browser.run("scrollTo(0, 200)")
        write_run(tmp_path / "rloo-0", [0.1, 0.8], algorithm="rloo", iterations=9)
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 2, "eval/accuracy": 0.6, "samples": 128}\n')
        browser.until("data.variants.length === 2", 40)
        pressed = "[...document.querySelectorAll('#axes [aria-pressed=true]')]"
        assert browser.run(f"{pressed}.map((one) => one.dataset.choice)") == ["samples"]
        assert len(browser.run(PATHS)) == 1 and browser.run("scrollY") == 200
        assert browser.run("document.getElementById('headline').textContent").startswith("rloo")
        assert all(url.startswith(server.url) for url in complaints(browser))
        server.shutdown()
    browser.until("document.getElementById('live').className === 'lost'", 20)


@contextmanager
def served(browser, folder):
    """A live page of the runs in a folder, open in the browser."""
    watched = live.Watched([str(folder)], lambda runs: compare(runs, Request()))
    with live.Server(watched, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open_page(browser, server.url)
        yield
        server.shutdown()


def test_a_served_page_waits_for_who_chooses_and_goes_on_with_the_list_focused(browser, tmp_path):
    write_run(tmp_path / "grpo-0", [0.1, 0.5])
    with served(browser, tmp_path):
        browser.run("document.getElementById('metric').focus()")
        browser.key("ArrowDown")
        write_run(tmp_path / "rloo-0", [0.1, 0.8], algorithm="rloo")
        browser.until("waiting?.variants.length === 2", 40)
        assert browser.run("data.variants.length") == 1
        browser.run("{ const now = performance.now() + 20000; performance.now = () => now; }")
        browser.until("data.variants.length === 2", 40)
        assert browser.run("document.activeElement.id") == "metric"


def test_a_served_page_names_its_own_error_and_goes_on(browser, tmp_path):
    write_run(tmp_path / "grpo-0", [0.1, 0.5])
    light = "document.getElementById('live')"
    with served(browser, tmp_path):
        browser.run("""{ const whole = render; window.repair = () => { render = whole; };
            render = () => { throw new TypeError("no such column"); }; }""")
        write_run(tmp_path / "rloo-0", [0.1, 0.8], algorithm="rloo")
        browser.until(f"{light}.textContent === 'TypeError: no such column'", 40)
        assert browser.run(f"{light}.className") == "lost fault"
        browser.run("repair()")
        browser.until(f"{light}.className === ''", 40)
        assert len(browser.run(PATHS)) == 2


def test_a_served_page_tells_of_a_bug_and_goes_on(browser, tmp_path):
    run = write_run(tmp_path / "grpo-0", [0.1, 0.5], iterations=9)

    def broken(runs):
        if runs[0].iterations == 2:
            raise KeyError("nobody knows")
        return compare(runs, Request())

    with live.Server(live.Watched([str(tmp_path)], broken), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open_page(browser, server.url)
        said = "document.getElementById('live').textContent"
        for iteration, text in ((2, "KeyError"), (3, "live")):
            with (run / "metrics.jsonl").open("a") as file:
                file.write(f'{{"iteration": {iteration}, "eval/accuracy": 0.6}}\n')
            browser.until(f"{said}.startsWith('{text}')", 40)
        server.shutdown()
