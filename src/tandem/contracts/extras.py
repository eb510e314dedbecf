"""Packages that only some parts need: the extras of pyproject.toml."""


def need_extra(part: str, extra: str) -> str:
    """The message of a part whose package is missing, with the command that installs it."""
    return f'{part} needs a package: pip install -e ".[{extra}]"'
