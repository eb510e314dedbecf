"""The plots of a comparison."""

import warnings

from written_runs import write_sweep

from tandem.compare.comparison import Request, compare
from tandem.compare.report.figures import draw_plots
from tandem.record.reading.runs import find, read


def test_long_names_of_many_variants_leave_the_plots_their_space(tmp_path):
    name = "staleness={}, importance_sampling=experiments.staleness.uncorrected"
    write_sweep(tmp_path, {name.format(number): [0.5, 0.6, 0.7] for number in range(9)})
    found = compare([read(path) for path in find([tmp_path])], Request())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a plot without space
        assert set(draw_plots(found, "")) == {"curves.pdf", "scores.pdf"}
