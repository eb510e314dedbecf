import gc
import weakref

import pytest
import torch
from recorded_models import PLAIN, RECORDED, check_equal

from tandem.policies.language import decode_graph, decoding
from tandem.policies.language.decode_graph import RecordedStep
from tandem.policies.weights import Precision


@pytest.fixture
def recorded(monkeypatch):
    """Rows and columns of every recorded step; the CPU stands in for a device with graphs."""
    sizes, steps, alive, init = [], [], [], RecordedStep.__init__

    def replayed(step):
        """A replay runs the step and fills the same tensor; like a graph, it holds no rows."""
        filled, number = step(), len(steps)
        steps.append(step)
        return lambda: filled.copy_(steps[number]()), filled

    def noting(self, *given):
        init(self, *given)
        sizes.append((len(self.token), self.width))
        alive.append(weakref.ref(self))

    monkeypatch.setattr(RecordedStep, "__init__", noting)
    monkeypatch.setattr(decode_graph, "record", replayed)
    monkeypatch.setattr(decode_graph, "ROOM", 3)  # a few columns, so that it is recorded again
    monkeypatch.setattr(decoding, "DEVICES", {"cpu"})
    gc.disable()
    yield sizes
    steps.clear()
    gc.enable()
    assert not any(step() for step in alive)  # without waiting for the garbage collector


@pytest.mark.parametrize("kind", RECORDED)
def test_a_recorded_step_gives_the_tokens_of_a_plain_one(recorded, kind):
    check_equal(kind, "cpu")
    rows = [n for n, _ in recorded]
    assert max(rows) > 2 * min(rows)  # again when rows had ended
    assert len({*recorded}) > len({*rows})  # and when its columns were used up


@pytest.mark.parametrize("kind", PLAIN)
def test_a_model_with_other_layers_is_not_recorded(recorded, kind):
    check_equal(kind, "cpu")
    assert not recorded


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_a_recorded_step_writes_into_a_cache_of_the_precision_of_training(recorded, kind):
    check_equal(kind, "cpu", Precision(mixed=True), atol=0.03)
    assert recorded


def test_a_recorded_step_keeps_one_copy_of_the_keys_and_values(recorded, monkeypatch):
    shared, init = [], RecordedStep.__init__

    def noting(self, cache, *given):
        init(self, cache, *given)
        pairs = [(layer.rooms, (layer.keys, layer.values)) for layer in cache.layers]
        shared.extend(
            room.untyped_storage().data_ptr() == written.untyped_storage().data_ptr()
            for rooms, both in pairs
            for room, written in zip(rooms, both, strict=True)
        )

    monkeypatch.setattr(RecordedStep, "__init__", noting)
    check_equal("qwen3", "cpu")
    assert shared and all(shared)


def test_a_step_that_cannot_be_recorded_names_the_flag(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with pytest.raises(RuntimeError, match=r"rollout\.cuda_graphs=false"):
        decode_graph.record(lambda: torch.zeros(1))
