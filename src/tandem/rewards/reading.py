"""An OCR reader: PaddleOCR's models from the package rapidocr-onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from torch import Tensor

from tandem.contracts import need_extra
from tandem.rewards.images import pixels

LONGEST = 960  # largest side in pixels for detection, as in PaddleOCR
HEIGHT, WIDTH = 48, 320  # pixels of a line for recognition; the width is a minimum


class RapidReader:
    """The text of each picture, its lines joined in reading order.

    Weights come with the package, onnxruntime runs on the CPU, and pictures are read one by one, so
    batching does not change a score. `detect=False` reads the whole picture as one line, for
    pictures too small for detection, such as letters of 16 pixels.
    """

    def __init__(self, *, detect: bool = True, min_score: float = 0.5, threads: int = 1) -> None:
        """`min_score`: smallest confidence of a line; `threads` of the CPU. Raises ValueError if
        the package is not installed."""
        if find_spec("rapidocr_onnxruntime") is None:
            raise ValueError(f"{need_extra('reward=ocr', 'ocr')}, on Python below 3.13")
        try:
            from rapidocr_onnxruntime import RapidOCR
        except ImportError as error:  # OpenCV needs a system library that servers often lack
            raise ValueError(
                f"reward=ocr cannot import OpenCV: {error}; apt-get install libgl1"
            ) from None

        self.detect, self.min_score = detect, min_score
        self.engine = RapidOCR(
            text_score=0.0,
            det_limit_type="max",  # RapidOCR's default would enlarge all pictures to 736 pixels
            det_limit_side_len=LONGEST,
            rec_img_shape=[3, HEIGHT, WIDTH if detect else HEIGHT],
            intra_op_num_threads=threads,
        )

    def __call__(self, pictures: Sequence[Tensor]) -> list[str]:
        """pictures: uint8 [H, W, 3]."""
        return [self.read(picture) for picture in pictures]

    def read(self, picture: Tensor) -> str:
        """The text in a picture, uint8 [H, W, 3]."""
        shown = pixels(picture).flip(-1).contiguous().numpy()  # BGR, as OpenCV has it
        lines, _ = self.engine(shown, use_det=self.detect, use_cls=False, use_rec=True)
        texts = [(line[-2], float(line[-1])) for line in lines or []]
        return "".join(text for text, score in texts if score >= self.min_score)
