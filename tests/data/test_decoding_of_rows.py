"""Stored images are decoded as a person sees them, or the error says why not."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from tandem.data.decoding import MOST_PIXELS, SHOWN, Decoding, middle, nearest_size

EXACT = Decoding(exact=True)


def encode(picture, kind="PNG", **options):
    file = io.BytesIO()
    picture.save(file, format=kind, **options)
    return file.getvalue()


def one_colour(mode, colour):
    return encode(Image.new(mode, (3, 2), colour))


def lying_png(width, height):
    """A PNG whose header claims that size, with a few bytes of pixels."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(4096)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [
        ("L", 7, [7, 7, 7]),
        ("1", 1, [255, 255, 255]),
        ("RGBA", (1, 2, 3, 255), [1, 2, 3]),
        ("LA", (9, 255), [9, 9, 9]),
        ("I;16", 65535, [255, 255, 255]),
        ("I;16", 257 * 100, [100, 100, 100]),
    ],
)
def test_colours_that_rgb_has_are_read_as_they_are(mode, colour, seen):
    for decode in (EXACT, SHOWN):
        assert decode(one_colour(mode, colour))[0, 0].tolist() == seen


def test_what_has_no_one_colour_is_not_learnt_from_but_shown():
    glass = one_colour("RGBA", (1, 2, 3, 128))
    print_ = encode(Image.new("CMYK", (3, 2), (0, 0, 0, 0)), "JPEG")
    for content, reason in ((glass, "transparent pixels"), (print_, "mode CMYK, not RGB")):
        with pytest.raises(ValueError, match=reason):
            EXACT(content)
    assert SHOWN(glass)[0, 0].tolist() == [1, 2, 3] and SHOWN(print_).min() > 250


def test_numbers_without_a_known_white_are_read_by_nobody():
    content = encode(Image.new("F", (3, 2), 0.5), "TIFF")
    for decode in (EXACT, SHOWN):
        with pytest.raises(ValueError, match="mode F"):
            decode(content)


def test_a_picture_is_turned_as_its_camera_was():
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn to the right
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255  # its left half becomes the upper one
    content = encode(Image.fromarray(pixels), "JPEG", exif=exif, quality=95)
    seen = EXACT(content).float().mean((1, 2))
    assert seen.shape == (32,) and seen[:15].min() > 200 and seen[17:].max() < 50


def exif_of(*tags):
    """An EXIF block of (tag, type, value), each value in its own four bytes."""
    parts = [struct.pack("<HHI4s", tag, kind, 1, value) for tag, kind, value in tags]
    head = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(parts))
    return head + b"".join(parts) + bytes(4)


ASCII, SHORT, SIGNED = 2, 3, 9  # types of EXIF values


@pytest.mark.parametrize(
    "odd",
    [
        (0x0100, ASCII, b"9\0\0\0"),  # ImageWidth as text
        (0x0100, SIGNED, struct.pack("<i", -5)),
        (0x011A, ASCII, b"9\0\0\0"),  # XResolution as text
    ],
)
def test_an_odd_tag_beside_the_orientation_costs_no_picture(odd):
    content = encode(
        Image.new("RGB", (32, 16)), "JPEG", exif=exif_of((0x0112, SHORT, b"\6\0\0\0"), odd)
    )
    assert EXACT(content).shape == (32, 16, 3)


def test_every_orientation_is_applied_as_pillow_does():
    corner = np.zeros((16, 32, 3), np.uint8)
    corner[:8, :8] = 255
    for number in range(10):
        exif = exif_of((0x0112, SHORT, struct.pack("<HH", number, 0)))
        content = encode(Image.fromarray(corner), "JPEG", exif=exif)
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        assert np.array_equal(EXACT(content).numpy(), np.array(upright)), number


def test_an_error_of_a_decoder_refuses_its_file_alone(monkeypatch):
    content = one_colour("L", 7)

    def fail(self):
        raise struct.error("unpack requires a buffer of 4 bytes")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    with pytest.raises(ValueError, match="cannot be read: unpack requires"):
        SHOWN(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no picture"),
        (b"\x80\x04\x95.", "no picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture"),
        (lying_png(64, (1 << 20) + 1), f"over {MOST_PIXELS}"),
        (lying_png(100_000, 100_000), "cannot be read"),
        (lying_png(200, 200), "truncated"),
    ],
)
def test_what_is_no_whole_picture_of_a_bearable_size_is_refused(content, reason):
    with pytest.raises(ValueError, match=reason):
        SHOWN(content)


def test_a_picture_that_breaks_off_is_refused_wherever_it_does():
    pixels = torch.rand((32, 32, 3), generator=torch.Generator().manual_seed(0)).mul(255).byte()
    whole = encode(Image.fromarray(pixels.numpy()), "JPEG")
    for part in (0.1, 0.5, 0.9):
        with pytest.raises(ValueError, match=r"no picture|cannot be read"):
            EXACT(whole[: int(part * len(whole))])


def test_the_nearest_size_is_that_of_the_nearest_shape():
    sizes = ((512, 512), (384, 640), (640, 384))
    for height, width in ((100, 100), (60, 100), (100, 61), (512, 513), (10, 1000), (1000, 10)):
        # second implementation: the nearest size is the one that crops the least
        kept = [middle(height, width, size) for size in sizes]
        lost = [height * width - high * wide for _, _, high, wide in kept]
        assert nearest_size(height, width, sizes) == sizes[lost.index(min(lost))]


def test_a_cut_is_the_middle_at_the_size_nearest_in_shape():
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, 4:20] = 200  # the middle 8 x 16
    decode = Decoding(exact=True, sizes=((4, 4), (4, 8)))
    assert torch.equal(decode(encode(Image.fromarray(pixels))), torch.full((4, 8, 3), 200).byte())
