"""Chat templates: their text, and why one cannot render messages."""

from __future__ import annotations

from pathlib import Path


class TemplateFault(ValueError):
    """Why a chat template cannot render messages."""


def describe_fault(error: Exception) -> str:
    """One line; of what a template does not raise on purpose, with its type."""
    from jinja2 import TemplateError

    said = " ".join(str(error).split())
    return said if isinstance(error, TemplateError) else f"{type(error).__name__}: {said}"


def read_template(path: Path) -> str:
    """The text of a chat template. Raises ValueError for a file that cannot be read."""
    if not path.is_file():
        raise ValueError(
            f"model.chat_template={path} does not exist; set it to a Jinja file or null"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"model.chat_template={path} is not a text in UTF-8 ({error.reason}); "
            "set it to a Jinja file or null"
        ) from error
