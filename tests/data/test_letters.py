"""The letters drawn in code: images, prompts, and that an OCR reward reads them."""

from collections import Counter

import pytest
import torch

from tandem.config import build, compose
from tandem.data.letters import INK, PAPER, PLACES, draw_letter, letters
from tandem.rewards.ocr import asked_text

ALPHABET = "ABDEFHKMRSTX"


def test_a_letter_is_dark_on_light_and_moves_by_whole_pixels():
    for letter in ALPHABET:
        drawn = draw_letter(letter)
        assert (drawn.shape, drawn.dtype) == ((9, 16, 16, 3), torch.uint8)
        assert drawn.min() < INK + 30 and drawn.max() == PAPER
        assert (drawn[..., 0] == drawn[..., 2]).all()
        edges = torch.cat([drawn[:, 0], drawn[:, -1]])
        assert (edges == PAPER).all()  # nothing is cut off above or below
        for (y, x), moved in zip(PLACES, drawn, strict=True):
            assert torch.equal(drawn[4].roll((y, x), (0, 1)), moved)


def test_no_two_pictures_are_alike():
    pictures = torch.cat([draw_letter(letter) for letter in ALPHABET])
    assert len(pictures.flatten(1).unique(dim=0)) == 12 * 9


def test_every_letter_is_asked_for_and_shown_as_often_as_any_other():
    data = letters(alphabet=ALPHABET, demonstrations=12 * 9 * 2, seed=0)
    for split in (data.train, data.eval, data.test):
        assert [asked_text(prompt) for prompt in split] == [*ALPHABET.lower()]
    ids = [prompt.id for split in (data.train, data.eval, data.test) for prompt in split]
    assert len(set(ids)) == 36
    shown = Counter((p.text, p.media.load().numpy().tobytes()) for p in data.demonstrations)
    assert len(shown) == 12 * 9 and set(shown.values()) == {2}
    drawn = {x.numpy().tobytes(): c for c in ALPHABET for x in draw_letter(c)}
    assert all(text == f'letter "{drawn[picture]}"' for text, picture in shown)


@pytest.mark.parametrize("alphabet", ["", "ABA", "A B", "A1"])
def test_an_alphabet_is_letters_each_once(alphabet):
    with pytest.raises(ValueError, match=r"^data\.alphabet=.* give distinct letters"):
        letters(alphabet=alphabet, seed=0)


def test_letters_choose_a_reader_of_lines_and_numbers_of_their_own():
    cfg = compose(["model=tiny_flow", "data=letters"])
    assert (cfg.choices["reward"], cfg.choices["recipe"]) == ("ocr_line", "letters/tiny_flow/nft")
    assert not cfg.reward.ocr_line.function.reader.detect
    assert [prompt.source for prompt in build(cfg.data, "data").train] == [*ALPHABET]
