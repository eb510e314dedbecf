"""Grids and strips of samples: positions, and that a file stores the exact pixels."""

import pytest
import torch

from tandem.record.pictures import (
    cut_tile,
    draw_strip,
    enlarge,
    lay_out_grid,
    load,
    save,
    save_titled,
)


def level(value, height=4, width=6):
    return torch.full((height, width, 3), value, dtype=torch.uint8)


def levels(pictures):
    return [picture[0, 0, 0].item() for picture in pictures]


def test_a_grid_goes_row_by_row_with_paper_between_and_in_the_places_left_over():
    sheet = lay_out_grid([level(value) for value in (10, 20, 30, 40, 50)], 3)
    assert (sheet.shape, sheet.dtype) == ((11, 22, 3), torch.uint8)
    assert sheet[1:5, 1:7].eq(10).all() and sheet[1:5, 15:21].eq(30).all()
    assert sheet[6:10, 1:7].eq(40).all() and sheet[6:10, 8:14].eq(50).all()
    assert sheet[6:10, 15:21].eq(255).all()
    assert sheet[[0, 5, 10]].eq(255).all() and sheet[:, [0, 7, 14, 21]].eq(255).all()


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (1, 4), (6, 3), (7, 3), (5, 1)])
def test_tiles_take_a_grid_apart(count, columns):
    pictures = [torch.randint(0, 256, (5, 3, 3), dtype=torch.uint8) for _ in range(count)]
    sheet = lay_out_grid(pictures, columns)
    for place, own in enumerate(pictures):
        assert torch.equal(cut_tile(sheet, (5, 3), place), own)
    places = -(-count // columns) * columns
    for place in range(count, places):
        assert cut_tile(sheet, (5, 3), place).eq(255).all()
    with pytest.raises(ValueError, match="no tile"):
        cut_tile(sheet, (5, 3), places)


@pytest.mark.parametrize(
    ("size", "place"),
    [([0, 0], 0), ([4, -1], 0), ([4, 60], 0), ([4.0, 6], 0), ([4], 0), ([4, 6], -1), ([4, 6], "0")],
)
def test_a_tile_that_no_grid_has_is_refused(size, place):
    with pytest.raises(ValueError, match="no tile"):
        cut_tile(lay_out_grid([level(1)], 1), size, place)


@pytest.mark.parametrize(("pictures", "columns"), [([], 2), ([level(1)], 0)])
def test_what_makes_no_grid_is_refused(pictures, columns):
    with pytest.raises(ValueError, match="a grid needs a picture and a column"):
        lay_out_grid(pictures, columns)


def test_pictures_of_several_sizes_stand_in_places_as_large_as_the_largest():
    sheet = lay_out_grid([torch.full((4, 2, 3), 1).byte(), torch.full((2, 6, 3), 2).byte()], 2)
    assert sheet.shape == (6, 15, 3)
    assert sheet[1:5, 1:3].eq(1).all() and sheet[1:3, 8:14].eq(2).all()
    assert sheet.eq(255).sum() == 3 * (6 * 15 - 8 - 12)


def test_a_strip_has_a_sample_a_row_and_an_iteration_a_column():
    frames = {20: [level(3), level(4)], 0: [level(1), level(2)]}
    shown, sheet = draw_strip(frames)
    assert shown == [0, 20]
    assert levels(cut_tile(sheet, (4, 6), place) for place in range(4)) == [1, 3, 2, 4]


def test_a_long_strip_keeps_both_ends_and_spreads_what_it_keeps():
    shown, sheet = draw_strip({10 * i: [level(i)] for i in range(25)}, most=4)
    assert shown == [0, 80, 160, 240]
    assert levels(cut_tile(sheet, (4, 6), place) for place in range(4)) == [0, 8, 16, 24]
    assert draw_strip({7: [level(1)]}, most=4)[0] == [7]


def test_a_file_keeps_the_very_pixels_and_replaces_the_one_before(tmp_path):
    path = tmp_path / "grid.png"
    for _ in range(2):
        picture = torch.randint(0, 256, (9, 13, 3), dtype=torch.uint8)
        assert save(picture, path) == path
        assert torch.equal(load(path), picture)
    assert [p.name for p in tmp_path.iterdir()] == ["grid.png"]


def test_enlarging_repeats_pixels():
    small = torch.tensor([[[1, 2, 3], [4, 5, 6]]], dtype=torch.uint8)
    large = enlarge(small, 2)
    assert large.shape == (2, 4, 3)
    assert torch.equal(large[::2, ::2], small) and torch.equal(large[1::2, 1::2], small)


def test_titles_stand_outside_a_grid_that_is_enlarged_pixel_by_pixel(tmp_path):
    red, blue = (torch.zeros(16, 16, 3, dtype=torch.uint8) for _ in range(2))
    red[..., 0], blue[..., 2] = 200, 200
    sheet = lay_out_grid([red, blue, blue, red], 2)
    plain = load(save_titled(sheet, tmp_path / "plain.png", size=(16, 16)))
    titled = load(
        save_titled(
            sheet, tmp_path / "titled.png", size=(16, 16), columns=["red", "blue"], rows=["a", "b"]
        )
    )
    assert titled.shape[0] > plain.shape[0] and titled.shape[1] > plain.shape[1]
    for picture in (plain, titled):
        # Two pictures of 16 x 16 in each colour, each pixel six times as large.
        for colour in ((200, 0, 0), (0, 0, 200)):
            area = (picture == torch.tensor(colour)).all(-1).sum().item()
            assert area == pytest.approx(2 * 96 * 96, rel=0.05)


def test_titles_that_look_like_formulas_are_drawn_as_they_are(tmp_path):
    sheet, formula = lay_out_grid([level(200, 16, 16)] * 2, 2), r"$\frac$ and $x$"
    said = {"columns": [formula] * 2, "rows": [formula], "captions": [formula] * 2}
    plain = load(save_titled(sheet, tmp_path / "plain.png", size=(16, 16)))
    drawn = load(save_titled(sheet, tmp_path / "formula.png", size=(16, 16), **said))
    assert drawn.shape[0] > plain.shape[0] and drawn.shape[1] > plain.shape[1]


@pytest.mark.filterwarnings("error:Glyph")
def test_titles_in_a_script_that_the_font_lacks_give_no_warnings(tmp_path):
    sheet, said = lay_out_grid([level(200, 16, 16)] * 2, 2), "红色的方块"
    drawn = save_titled(sheet, tmp_path / "a.png", size=(16, 16), rows=[said], captions=[said] * 2)
    assert drawn.exists()
