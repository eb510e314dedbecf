"""Controllers of coefficients, against the reference and by hand."""

from math import isclose, nan

import pytest
import torch

from tandem.algorithm.controllers import EntropyController, KLController, ScheduledCoefficient
from tandem.contracts.stateful import StatefulComponent, metrics_of_state
from tandem.contracts.wrong_output import WrongOutput


def test_the_kl_controller_is_the_reference_one(vectors):
    controller, seen = KLController(start=0.2, kl_target=0.1, horizon=10_000), []
    for kl in (0.05, 0.1, 0.13, 0.5):
        controller.observe(kl, 256)
        seen.append(float(controller))
    assert seen == pytest.approx([0.198976, 0.198976, 0.199995, 0.201019], abs=1e-6)
    assert isclose(seen[-1], vectors["klctl"].item(), rel_tol=1e-12)


def test_an_odd_kl_moves_it_by_a_fifth_of_a_horizon_at_most():
    for kl, want in ((1e9, 1.2), (0.0, 0.8)):
        controller = KLController(start=1.0, kl_target=0.1, horizon=64)
        controller.observe(kl, 64)
        assert float(controller) == pytest.approx(want)


def test_the_entropy_bonus_grows_below_the_target_and_shrinks_above_it():
    controller = EntropyController(start=0.01, target=0.5)
    assert float(controller) == 0.0, "nothing is known of the entropy yet"
    seen = []
    for entropy in (0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.3):
        controller.observe(entropy)
        seen.append((controller.value.item(), float(controller)))
    want = [0.015, 0.02, 0.015, 0.01, 0.005, 0.0, 0.005]
    assert [value for value, _ in seen] == pytest.approx(want)
    low = [True, True, False, False, False, False, True]
    assert [x for _, x in seen] == pytest.approx([v * b for v, b in zip(want, low, strict=True)])


def test_the_entropy_bonus_stays_between_0_and_its_most():
    controller = EntropyController(start=0.9, target=1.0, step=0.5, most=1.0)
    controller.observe(0.1)
    assert float(controller) == 1.0
    for _ in range(3):
        controller.observe(2.0)
    assert controller.value.item() == 0.0


def schedule():
    return ScheduledCoefficient(start=0.2, schedule=lambda iteration: 1 - iteration / 4)


def test_a_schedule_gives_the_coefficient_of_each_iteration_whatever_its_kl():
    coefficient, seen = schedule(), []
    for kl in (0.5, nan, 0.0):
        seen.append(float(coefficient))
        coefficient.observe(kl, 64)
    assert seen == pytest.approx([0.2, 0.15, 0.1])


CONTROLLERS = {
    "schedule": (schedule, lambda c: c.observe(0.5, 256)),
    "kl": (lambda: KLController(start=0.2, kl_target=0.1), lambda c: c.observe(0.5, 256)),
    "entropy": (lambda: EntropyController(start=0.2, target=0.1), lambda c: c.observe(0.05)),
}
both = pytest.mark.parametrize(("make", "see"), CONTROLLERS.values(), ids=CONTROLLERS)


@both
def test_a_checkpoint_remembers_where_it_stood(make, see):
    one, other = make(), make()
    see(one)
    other.load_state_dict(one.state_dict())
    assert float(other) == float(one) != float(make())
    see(one), see(other)
    assert float(other) == float(one)


@both
def test_it_keeps_its_precision_when_the_module_around_it_is_cast(make, see):
    controller = make()
    see(controller)
    before = float(controller)
    torch.nn.ModuleList([controller]).to(torch.bfloat16)
    assert float(controller) == before
    assert {x.dtype for x in controller.state_dict().values()} == {torch.float64}


@pytest.mark.parametrize(
    "numbers", [{"start": -0.1}, {"kl_target": 0.0}, {"horizon": 0}], ids=lambda n: next(iter(n))
)
def test_a_kl_controller_refuses_numbers_without_a_meaning(numbers):
    with pytest.raises(ValueError, match="start of 0 or more, kl_target > 0 and horizon > 0"):
        KLController(**{"start": 0.1, "kl_target": 0.1, "horizon": 1} | numbers)


@pytest.mark.parametrize("numbers", [{"start": 2.0}, {"start": -1.0}, {"step": 0.0}], ids=str)
def test_an_entropy_controller_refuses_numbers_without_a_meaning(numbers):
    with pytest.raises(ValueError, match="0 <= coef <= most and step > 0"):
        EntropyController(**{"start": 0.1, "target": 1.0} | numbers)


class Reporting(StatefulComponent):
    def __init__(self, reports):
        super().__init__()
        self.reports = reports

    def report(self):
        return self.reports


def test_what_a_component_reports_are_floats_by_names_with_a_group():
    assert metrics_of_state(Reporting({"optim/x": 1, "optim/y": nan})).keys() == {
        *("optim/x", "optim/y")
    }
    for reports, says in (
        (None, r"^Reporting\.report at .* returned a NoneType; return a dict of names to floats$"),
        ({"optim/x": torch.ones(3)}, r"torch\.float32 \[3\]; return optim/x as a float, such as x"),
        ({"optim/x": "high"}, r"returned a str; return optim/x as a float"),
        ({"iteration": 7}, r"^Reporting at .* measures 'iteration', which is no name of a comp"),
        ({"eval/accuracy": 1.0}, "measures 'eval/accuracy', which is no name of a component's"),
        ({3: 1.0}, "measures '3', which is no name of a component's; name it as actor/x, in none"),
    ):
        with pytest.raises(WrongOutput, match=says):
            metrics_of_state(Reporting(reports))


class Growing(StatefulComponent):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def forward(self, times):
        self.seen = self.seen.repeat(times) + 1
        return times


def test_a_buffer_that_grows_is_refused_before_a_checkpoint_holds_it():
    growing = Growing()
    assert growing(1) == 1
    with pytest.raises(WrongOutput, match=r"^Growing at .* changes the shape of its buffer 'seen'"):
        growing(2)
