"""Files that are either complete or absent."""

from tandem.record import durable


def test_a_link_under_the_temporary_name_is_not_written_through(tmp_path):
    mine, path = tmp_path / "mine", tmp_path / "config.yaml"
    mine.write_bytes(b"mine")
    (tmp_path / "config.yaml.tmp").symlink_to(mine)
    durable.replace(path, b"new")
    assert (mine.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"mine", b"new", False)


def test_what_a_kill_left_is_overwritten_and_the_mode_is_that_of_any_file(tmp_path):
    (tmp_path / "a.tmp").write_bytes(b"longer than what is written")
    durable.replace(tmp_path / "a", b"new")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    assert not (tmp_path / "a.tmp").exists()
