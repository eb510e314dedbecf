"""Files of tensors: readable by safetensors, hashed while written, whole or in parts."""

import hashlib
import threading

import pytest
import torch
from safetensors.torch import load_file

from tandem.record import publishing
from tandem.record.publishing import CheckpointError, Writing, publish
from tandem.record.tensor_files import DTYPES, part_name, read_tensors, write_tensors

ANY = {
    "odd": torch.arange(3, dtype=torch.uint8),
    "half": torch.randn(5, 2).bfloat16(),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "turned": torch.randn(3, 4).t(),
    "yes": torch.tensor([True, False]),
}


def test_the_library_reads_what_was_written_and_the_hash_is_that_of_the_file(tmp_path):
    file = tmp_path / "policy.safetensors"
    entry = write_tensors(file, ANY)
    raw = file.read_bytes()
    assert entry == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    found = load_file(file)
    assert found.keys() == ANY.keys()
    for name, tensor in ANY.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(tmp_path, dtype):
    x = torch.tensor([0, 1, 1]).to(dtype)
    write_tensors(tmp_path / "x.safetensors", {"x": x})
    found = load_file(tmp_path / "x.safetensors")["x"]
    assert found.dtype == dtype and torch.equal(found.float(), x.float())


def test_parts_of_ranks_are_put_together_by_their_first_rows(tmp_path):
    whole = torch.randn(23, 2)
    rows = {0: whole[:12], 12: whole[12:]}  # 12 is after 2 as a number, not as a word
    for rank, (first, part) in enumerate(sorted(rows.items(), key=str)):
        other = {f"own{rank}": torch.tensor(rank)}
        write_tensors(
            tmp_path / f"policy.{rank:05d}.safetensors", {part_name("w", first): part} | other
        )
    found = read_tensors(sorted(tmp_path.iterdir(), reverse=True))
    assert torch.equal(found["policy"].pop("w"), whole)
    assert found == {"policy": {"own0": torch.tensor(0), "own1": torch.tensor(1)}}


def test_a_checkpoint_is_written_beside_the_run_and_appears_when_it_is_whole(tmp_path, monkeypatch):
    gate = threading.Event()

    def slowly(path, tensors):
        gate.wait(10)
        return write_tensors(path, tensors)

    monkeypatch.setattr(publishing, "write_tensors", slowly)
    writing = Writing(tmp_path, 3, {"policy": ANY}, {}, keep=1)
    assert not writing.target.exists()  # and the run goes on
    gate.set()
    writing.wait()
    assert writing.target.exists()


def test_what_a_thread_cannot_write_stops_the_run_that_waits_for_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"was not written: torch\.complex64"):
        publish(tmp_path, 3, {"module": {"x": torch.zeros(2, dtype=torch.complex64)}}, {}, keep=1)
    assert list(tmp_path.iterdir()) == []
