"""The W&B account of this machine."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import wandb


def is_logged_in(settings: wandb.Settings | None = None) -> bool:
    """Whether a variable, settings file or netrc has a key; the client would ask the server."""
    import wandb

    settings = settings or wandb.setup().settings
    if settings.api_key or settings.identity_token_file:
        return True
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return netrc.netrc(path).authenticators(urlsplit(settings.base_url).hostname) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def default_entity() -> str:
    """The entity that owns the user's projects by default, from the server."""
    import wandb

    return wandb.Api().default_entity
