"""Pages of the site: the commands they show are accepted, and generated content is correct."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
from gate import each
from generate import algorithms, both_learn, commands, curves, formula, repository, tables
from generate.signatures import parameters

from tandem.config import build, check, compose

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PPO, FLOW = ("algorithm=ppo",), ("model=tiny_flow", "algorithm=flow_grpo")
WITH_DATA = ("model=hf", "model.path=M", "data=jsonl", "data.path=D")
# Page -> overrides before one of the page on the command line; the first that fits is used.
BEFORE = {
    "debugging": [(), PPO, FLOW],
    "deep/ppo": [PPO],
    "deep/grpo": [()],
    "coming_from/trl": [(), ("data=jsonl", "data.path=D")],
    "coming_from/verl": [(), ("data.path=D",)],
    "coming_from/diffusers": [FLOW],
    "coming_from/lightning_hydra_template": [()],
}
OURS = ("Tandem", "key", "then set", "else")  # columns of Tandem's overrides


def cells(text: str) -> set[str]:
    """The table cells under a heading of Tandem's own."""
    found = set()
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        head, _, *rows = [line.strip("| ").split("|") for line in table.splitlines()]
        ours = [at for at, name in enumerate(head) if name.strip() in OURS]
        found |= {row[at] for row in rows for at in ours if at < len(row)}
    return found


def typed_overrides(page: str) -> list[str]:
    """The overrides that a page tells users to type."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    prose = re.sub(r"^\|.*$", "", text, flags=re.M) if page in ("debugging",) else ""
    spans = re.findall(r"`([^`]+)`", " ".join(cells(text)) + prose)
    words = [span for span in spans if re.match(r"['\"]?[a-z_/.]+=", span)]
    return sorted(word for word in words if not re.search(r"=RUN|=f\b", word))


@pytest.mark.parametrize(
    ("page", "override"), each(6, [(page, one) for page in BEFORE for one in typed_overrides(page)])
)
def test_an_override_of_a_page_composes_and_binds(page, override):
    refused = []
    for before in BEFORE[page]:
        try:
            check(compose([*before, *shlex.split(override)]))
            return
        except ValueError as error:
            refused.append(str(error))
    raise AssertionError(f"{page}: {override}: {refused}")


def test_a_page_names_metrics_that_are_recorded():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    said = set()
    for page in BEFORE:
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        text = " ".join(cells(text)) if page == "coming_from/trl" else text
        said |= set(re.findall(r"`(?:actor|reward|critic|response|rollout_corr)/(\w+)`", text))
    assert {name for name in said if not re.search(rf'[/"]{name}"', source)} == set()
    assert len(said) > 12


def test_a_part_without_a_formula_is_named_and_so_is_a_formula_without_a_part(monkeypatch):
    shorter = {**algorithms.FORMULAS, "loss": {"nll": "x", "gone": "y"}}
    monkeypatch.setattr(algorithms, "FORMULAS", shorter)
    with pytest.raises(ValueError, match=r"loss ppo has no formula in docs/formulas\.yaml"):
        algorithms.page("dapo")
    with pytest.raises(ValueError, match="formulas that no preset uses: loss gone"):
        algorithms.refuse_left_over({("loss", "nll")}, groups=["loss"])


def test_every_preset_has_a_curve_to_be_measured_and_every_task_says_what_it_is(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    protocols = importlib.import_module("algorithms").PROTOCOLS
    presets = {path.stem for path in (ROOT / "conf" / "algorithm").glob("[!_]*.yaml")}
    assert {name for part in protocols.values() for name in part.algorithms.split()} == presets
    assert protocols.keys() == curves.TASKS.keys()


@pytest.mark.parametrize("group", algorithms.FORMULAS)
def test_a_formula_of_each_group_is_drawn(group):
    """All others are drawn when the site is built, which fails for an invalid formula."""
    latex = next(iter(algorithms.FORMULAS[group].values()))
    assert formula.svg(latex).count("<path") == 1


def test_a_preset_has_a_page_with_its_paper_its_numbers_and_its_file():
    page = algorithms.page("dapo")
    assert "[arXiv:2503.14476]" in page
    assert "| `algorithm.loss.clip_high` | `0.28` |" in page
    assert "| `group_size` | `16` |\n| `num_minibatches` | `16` |\n| `epochs` | `1` |" in page
    assert "override sampling_strategy" in page


def test_a_link_into_the_repository_leads_to_its_page():
    text = "[a](../../conf/algorithm/grpo.yaml) [b](../../src/tandem/rng.py#L3) [c](index.md)"
    led = repository.relink(text, "docs/howto/loss.md", "howto/loss.md")
    assert led == "[a](../algorithms/grpo.md) [b](../source/src/tandem/rng.py.md#L3) [c](index.md)"


def test_a_link_in_a_block_of_code_is_code():
    text = "```python\nx = [a](b.md)\n```\n"
    assert repository.relink(text, "docs/x.md", "x.md") == text


def test_a_line_of_a_command_is_an_element_and_its_comment_is_marked():
    before = '<div class="language-text highlight"><pre><span></span><code>'
    page = f"{before}a --b    # c\nd # e\n</code></pre></div>"
    lines = '<span class="line">a --b  <span class="c1"># c</span>\n</span>'
    lines += '<span class="line">d # e\n</span>'
    assert commands.wrap_lines(page) == f"{before}{lines}</code></pre></div>"
    assert commands.wrap_lines("<code>a  # b</code>") == "<code>a  # b</code>"


def test_the_curve_of_most_seeds_says_how_many_samples_it_takes():
    three = [{0: 0.1, 10: 0.5, 20: 0.9}, {0: 0.1, 10: 0.2, 20: 0.6}, {0: 0.1, 10: 0.2, 20: 0.3}]
    runs = curves.Measured("letters", "x", three, three, 1.0, "c", "d", ())
    assert runs.samples_to(0.5) == 20
    assert runs.samples_to(0.9) is None
    assert runs.first == pytest.approx(0.1)
    assert runs.last == [0.9, 0.6, 0.3]
    shorter = curves.drawing([("", [three[0], {0: 0.1, 10: 0.0}])])  # a guard ended the second
    assert shorter.count("polyline") == 3


def test_a_parameter_is_read_with_its_type_bound_and_comment():
    clip, ratio = (parameters("tandem.losses.policy.ppo")[n] for n in ("clip_low", "ratio_max"))
    assert (clip.type, clip.default, clip.bound) == ("float", "0.2", "between(0, 1)")
    assert ratio.meaning.startswith("Caps the ratio of bad steps")


def test_a_page_gets_the_table_that_it_asks_for():
    filled = tables.fill("before\n<!-- table: fields Scores -->\nold\n<!-- end -->\nafter")
    assert "| `scored` | [B] bool |" in filled and "old" not in filled
    assert filled == tables.fill(filled)


def test_a_comment_that_says_what_none_means_alone_is_no_meaning_for_other_records():
    row = "| `transition` | None: not asked for, or the steps are not Gaussian |"
    assert row in tables.fields("Evidence")
    assert tables.meanings()["transition"] == "of Gaussian steps"


def test_pages_show_files_and_tables_as_they_are_now():
    texts = {page: page.read_text(encoding="utf-8") for page in tables.pages()}
    assert [str(p) for p, text in texts.items() if tables.fill(text) != text] == [], "make shown"
    asking = re.compile(r"^<!-- (?:code|table): ", re.M)
    assert all(len(asking.findall(x)) == len(tables.SHOWN.findall(x)) for x in texts.values())


def test_the_picture_of_the_readme_is_drawn_from_the_measured_runs():
    assert both_learn.PICTURE.read_text(encoding="utf-8") == both_learn.picture(), "make picture"


def test_the_reward_of_the_page_on_data_reads_the_fields_of_its_rows(tmp_path, monkeypatch):
    text = (DOCS / "howto" / "data.md").read_text(encoding="utf-8")
    rows, code = (re.search(rf"```{name}\n(.*?)```", text, re.S)[1] for name in ("json", "python"))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "reward_of_the_page.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    chosen = (
        "plugins=[reward_of_the_page]",
        "reward=allowed",
        "data=jsonl",
        "data.path=rows.jsonl",
    )
    cfg = compose([*chosen, "reward.allowed.function.bonus=0.2", "data.held_out=0"])
    check(cfg)
    (prompt, _), reward = build(cfg.data).train, build(cfg.reward.allowed).function
    scores = {answer: reward(answer, prompt) for answer in prompt.fields["allowed"]}
    assert [*scores.values()] == [1 + 0.2 * prompt.fields["difficulty"]] * 2
    assert reward("bac", prompt) == 0


def test_no_page_keeps_both_sides_of_a_merge():
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    assert len(pages) > 30
    assert not [page.name for page in pages if re.search("^(<{7}|>{7}) ", page.read_text(), re.M)]
