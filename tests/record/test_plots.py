import pytest
from matplotlib.image import imread

from tandem.record import jsonl, plots
from tandem.record.panels import panels_of
from tandem.record.plots import draw_curves, draw_heatmap, find_frontier, smooth


def recorded(folder, lines) -> None:
    for iteration, line in enumerate(lines):
        jsonl.append(folder / "metrics.jsonl", {"iteration": iteration, **line})


def test_panels_appear_for_what_there_is_data_of(tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    for folder in (few, many):
        folder.mkdir()
    recorded(few, [{"reward/mean": 0.1}, {"reward/mean": 0.2}])
    full = {"reward/mean": 0.1, "eval/accuracy": 0.5, "eval/pass@1": 0.5, "eval/pass@8": 0.9}
    more = {"actor/entropy": 1.0, "actor/clip_frac": None, "optim/grad_norm": 1.0}
    recorded(many, [full | more, full | more])
    small, large = imread(draw_curves(few)), imread(draw_curves(many))
    assert large.shape[0] > 1.8 * small.shape[0]  # two rows: the clip fraction is not known
    assert large.shape[1] > 2.5 * small.shape[1]


def test_texts_and_pictures_have_panels_of_their_own():
    both = {"reward/mean": 0.1, "eval/accuracy": 0.5, "response/length_mean": 3.0}
    texts = {panel.title: panel for panel in panels_of([both | {"eval/greedy_accuracy": 0.5}])}
    assert list(texts) == ["training reward", "held-out accuracy", "steps per answer"]
    assert texts["held-out accuracy"].names["eval/accuracy"] == "T = 1"
    painted = {"eval/diversity": 0.2, "eval/reward_sampled": 0.3, "response/diversity": None}
    painted |= {"eval/dark": 0.7, "eval/colour_entropy": 1.0, "eval/edge_density": 0.2}
    painted |= {"eval/distance_to_start": 0.0}
    pictures = {panel.title: panel for panel in panels_of([both, both | painted])}
    assert list(pictures) == [
        "training reward",
        "held-out accuracy",
        "held-out reward",
        "std over samples of a prompt",
        "RMS distance to the first pictures",
        "share of dark pixels",
        "entropy of colours, nats",
        "share of pixels at an edge",
    ]
    assert pictures["held-out accuracy"].names["eval/accuracy"] == "ODE"


def test_each_of_several_rewards_has_a_panel_of_its_own():
    alone = {"reward/mean": 0.1, "reward/a/mean": 0.1, "eval/reward_a": 0.2}
    assert [panel.title for panel in panels_of([alone])] == ["training reward"]
    both = alone | {"reward/b/mean": 0.3, "eval/reward_b": 0.4}
    panels = {panel.title: panel.names for panel in panels_of([both])}
    for part in ("a", "b"):
        names = {f"reward/{part}/mean", f"eval/reward_{part}", f"eval/reward_{part}_sampled"}
        assert {*panels[f"reward {part}"]} == names


def test_a_record_of_nothing_is_no_error(tmp_path):
    assert draw_curves(tmp_path).exists()
    assert draw_heatmap(tmp_path) is None


def test_one_source_needs_no_map(tmp_path):
    recorded(tmp_path, [{"eval/accuracy": 0.5, "eval/accuracy/sort": 0.5}])
    assert draw_heatmap(tmp_path) is None


def test_the_map_is_dark_where_accuracy_is_high(tmp_path):
    easy, hard = {"eval/accuracy/length_9": 1.0}, {"eval/accuracy/length_10": 0.0}
    recorded(tmp_path, [{"eval/accuracy": 0.5, **easy, **hard}] * 8)
    picture = imread(draw_heatmap(tmp_path))[:, :, :3].mean(-1)
    height, width = picture.shape
    column = picture[:, width // 2]
    assert column[int(0.30 * height)] > 0.8  # length 10, above
    assert column[int(0.65 * height)] < 0.4  # length 9, below


def test_the_map_of_many_evaluations_and_sources_is_no_larger_than_it_can_be_shown(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(plots, "MOST_COLUMNS", 10)
    monkeypatch.setattr(plots, "MOST_ROWS", 3)
    shapes = set()
    for evaluations, count in ((10, 3), (25, 7)):
        folder = tmp_path / str(count)
        folder.mkdir()
        sources = {f"eval/accuracy/task_{i}": 0.5 for i in range(count)}
        recorded(folder, [{"eval/accuracy": 0.5, **sources}] * evaluations)
        shapes.add(imread(draw_heatmap(folder)).shape)
    assert len(shapes) == 1


def test_a_source_that_looks_like_a_formula_has_its_row(tmp_path):
    recorded(tmp_path, [{"eval/accuracy": 0.5, r"eval/accuracy/$\frac$": 1, "eval/accuracy/b": 0}])
    assert draw_heatmap(tmp_path).exists()


@pytest.mark.parametrize(
    ("column", "height"),
    [
        ([1.0, 1.0, 0.0, 0.0], 1.5),
        ([1.0, 0.75, 0.25, 0.0], 1.5),
        ([1.0, 0.5, 0.25], 1.0),
        ([0.1, 0.9], -0.5),
        ([0.9, 0.8], 1.5),
    ],
)
def test_the_frontier_is_where_accuracy_falls_through_a_half(column, height):
    assert find_frontier(column) == pytest.approx(height)


def test_smoothing_keeps_a_line_and_halves_an_outlier():
    assert smooth([3.0] * 50) == pytest.approx([3.0] * 50)
    middle = [0.0] * 25 + [1.0] + [0.0] * 25
    got = smooth(middle)
    assert max(got) == got[25] < 0.5
    assert sum(got) == pytest.approx(1.0, abs=1e-9)
