"""The picture of the top of a report: `python -m compare.picture REPORT.html PICTURE.png`.

It needs a Chromium on the PATH.
"""

import io
import sys
from base64 import b64decode
from pathlib import Path

from compare.chromium import Chromium
from PIL import Image

WIDTH, HEIGHT, COLOURS = 1165, 1480, 256


def take_picture(report: Path) -> Image.Image:
    browser = Chromium()
    try:
        browser.look(WIDTH, HEIGHT, "light")
        browser.open(report.resolve().as_uri())
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.run("document.querySelector('.bar').remove()")
        found = browser.call("Page.captureScreenshot")
    finally:
        browser.close()
    return Image.open(io.BytesIO(b64decode(found["data"]))).convert("RGB")


def main(report: str, picture: str) -> None:
    take_picture(Path(report)).quantize(COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
