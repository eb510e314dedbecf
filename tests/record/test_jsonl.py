import math
import multiprocessing
import os
import resource

import pytest

from tandem.record import jsonl


def test_floats_come_back_bit_for_bit(tmp_path):
    values = [0.1, 1 / 3, 1e-310, 2**-1074, 123456789.123456789, -0.0, 1e300]
    jsonl.append(tmp_path / "log", {"iteration": 0, "values": values})
    got = jsonl.read(tmp_path / "log")[0]["values"]
    assert [x.hex() for x in got] == [x.hex() for x in values]


def test_what_is_not_a_number_is_null(tmp_path):
    row = {"iteration": 0, "nan": math.nan, "inf": math.inf, "parts": {"a": -math.inf}}
    jsonl.append(tmp_path / "log", row)
    assert (tmp_path / "log").read_text() == (
        '{"iteration": 0, "nan": null, "inf": null, "parts": {"a": null}}\n'
    )


def log_of(path, *iterations: int) -> bytes:
    for iteration in iterations:
        jsonl.append(path, {"iteration": iteration, "x": iteration / 3})
    return path.read_bytes()


def test_cutting_gives_the_bytes_of_a_log_that_never_went_further(tmp_path):
    want = log_of(tmp_path / "short", 0, 1, 2)
    log_of(tmp_path / "long", 0, 1, 2, 3, 4)
    jsonl.cut(tmp_path / "long", 3)
    assert (tmp_path / "long").read_bytes() == want
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long", "short"]


@pytest.mark.parametrize("left", range(1, 20))
def test_a_line_torn_anywhere_is_dropped(tmp_path, left):
    want = log_of(tmp_path / "log", 0, 1)
    torn = log_of(tmp_path / "log", 2)[: len(want) + left]
    (tmp_path / "log").write_bytes(torn)
    assert [row["iteration"] for row in jsonl.read(tmp_path / "log")] == [0, 1]
    jsonl.cut(tmp_path / "log", 2)
    assert (tmp_path / "log").read_bytes() == want


def test_cutting_a_log_that_is_not_there_makes_none(tmp_path):
    jsonl.cut(tmp_path / "log", 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "middle",
    [
        *(b'{"iteration": 1, "x"\n', b"\0\0\0\n", b"3\n", b"\xff\n", b"[" * 10**5 + b"\n"),
        b'{"iteration": 1, "x"\r{"iteration": 1}\n',
    ],
)
def test_a_line_in_the_middle_that_says_nothing_is_damage_and_nothing_is_cut(tmp_path, middle):
    path = tmp_path / "log"
    content = b'{"iteration": 0}\n' + middle + b'{"iteration": 2}\n'
    path.write_bytes(content)
    for act in (jsonl.read, lambda log: jsonl.cut(log, 1)):
        with pytest.raises(jsonl.Damaged, match="log: line 2 is damaged") as damage:
            act(path)
        assert "\n" not in str(damage.value)
    assert path.read_bytes() == content


def test_a_line_for_which_there_is_no_room_leaves_no_part_of_it(tmp_path):
    """In a child process whose files may have 200 bytes: the kernel writes a part, then fails."""
    path = tmp_path / "log"

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        jsonl.append(path, {"iteration": 0, "x": "a" * 100})
        try:
            jsonl.append(path, {"iteration": 1, "x": "a" * 100})
        except OSError as error:
            os._exit(7 if error.filename == str(path) else 8)

    child = multiprocessing.get_context("fork").Process(target=fill)
    child.start()
    child.join()
    assert child.exitcode == 7
    assert [row["iteration"] for row in jsonl.read(path)] == [0]
    assert path.read_bytes().endswith(b"\n")
