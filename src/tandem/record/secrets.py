"""Secrets that a record must not hold, and their removal from texts and trees.

A value is hidden because of its name (`api_key`), its shape (`hf_...`), its place (a signature in a
URL), or because an environment variable named like a secret holds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import yaml

REDACTED = "<redacted>"  # a plain scalar in YAML too
SHORTEST = 8  # shorter values, such as "false", are everywhere
LOOSE = r"auth(?!or(?!iz))|cookie|credential"
# TOKENIZER_MODEL and KEYBOARD do not match: their values may be the path of the model.
VARIABLE = re.compile(
    r"KEY(?:S|ID|PASS)?(?![A-Z])|TOKEN(?!I[SZ])|SECRET|PASSWORD|PASSWD|PASSPHRASE|_PWD$|_PAT$"
    rf"|{LOOSE}",
    re.I,
)
# Names whose value is always a secret; num_tokens, pad_token, cookie_words, api_key_env do not
# match.
NAME = (
    r"[\w.-]*(?:(?:api|access|secret|private|account|shared|wandb|ssh|encryption|signing)[_-]?keys?"
    r"|(?:auth|access|api|hf|bearer|session|refresh|id|security)[_-]?tokens?|secrets?|password|passwd|passphrase|(?:_|\b)pwd|_pat"
    r"|credentials?|cookies?|(?:_|\b)auth|authorization)|(?:[\w.-]*\.)?token"
)
KEY = re.compile(NAME, re.I)
ASSIGNED = re.compile(rf"(?P<name>[+~'\"-]*(?:{NAME})=)(?P<value>.+)", re.I | re.S)
# The variables that the jobs of a sweep get: one, or a mapping of them.
SET = re.compile(r"(?P<name>[+~'\"]*hydra\.job\.env_set(?:\.(?P<one>\w+))?=)(?P<value>.+)", re.S)
IN_URL = r"sig|signature|key|code|token|secret|password|credential|auth"
PLACES = tuple(
    re.compile(pattern, re.I | re.M)
    for pattern in (
        r"(?P<name>://)(?P<value>[^/\s'\"]+)(?=@)",  # a user and a password
        rf"(?P<name>[?&;](?:[\w.-]*(?:{IN_URL}))=)(?P<value>[^&\s'\"#]+)",
        r"(?P<name>\bauthorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token)\s+)?)"
        r"(?P<value>(?!(?:bearer|basic|token)\s)[^\s'\",}]+)",
        r"(?P<name>\bhooks\.slack\.com/\w+/)(?P<value>[^\s'\"]+)",
        r"(?P<name>\bbearer\s+)(?P<value>[\w.~+/=-]{8,})",
        r"(?P<name>\bcookie['\"]?\s*:\s*['\"]?)(?P<value>\w[\w.-]*=[^'\"\n]+)",
        rf"(?P<name>(?<![\w.-])(?:{NAME})=['\"]?)(?P<value>[^\s'\"&]+)",  # name=value
        rf"(?P<name>--(?:{NAME})\s+['\"]?)(?P<value>[^\s'\"]+)",  # --name value
        rf"(?P<name>[{{,]\s*['\"]?(?:{NAME})['\"]?\s*:\s*)(?P<value>[^\s,}}]+)",  # {name: value}
        rf"(?P<name>^\s*(?:- )?(?:{NAME}): )(?P<value>.+)$",  # a line of YAML
    )
)
SHAPES = re.compile(
    r"\b(?:sk|pk|rk)-(?=[\w-]*\d)[\w-]{12,}|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bgithub_pat_\w{20,}|\bAKIA[0-9A-Z]{16}\b|\bxox[abeprs]-[\w-]{10,}|\bglpat-[\w-]{16,}"
    r"|\b[spr]k_(?:live|test)_[A-Za-z0-9]{10,}|\bAIza[\w-]{35}|\bnpm_[A-Za-z0-9]{30,}"
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{4,}(?:\.[\w-]*)?"  # JWT
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)


def scrub(text: str, environment: Mapping[str, str]) -> str:
    """The text without the secrets in it."""
    for name, value in sorted(environment.items(), key=lambda item: -len(item[1])):
        is_place = os.path.exists(value)  # HF_TOKEN_PATH=/home/me hides no secret, but breaks paths
        if VARIABLE.search(name) and len(value) >= SHORTEST and not is_place:
            text = text.replace(value, REDACTED).replace(quote(value, safe=""), REDACTED)
    for place in PLACES:
        text = place.sub(lambda found: found["name"] + _hide(found["value"]), text)
    return SHAPES.sub(REDACTED, text)


def scrub_word(word: str, environment: Mapping[str, str]) -> str:
    """One word of a command line without secrets; its value may contain spaces and newlines."""
    if (found := ASSIGNED.fullmatch(word)) is not None:
        return found["name"] + _hide(found["value"])
    if (found := SET.fullmatch(word)) is not None:
        secret = found["one"] is None or VARIABLE.search(found["one"])
        return found["name"] + _hide(found["value"]) if secret else scrub(word, environment)
    return scrub(word, environment)


def scrub_words(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """A command line without secrets; the word after --password is one too."""
    pairs = zip(("", *words), words, strict=False)
    return [
        REDACTED
        if before.startswith("--") and KEY.fullmatch(before[2:]) and not word.startswith("--")
        else scrub_word(word, environment)
        for before, word in pairs
    ]


def scrub_tree(value: Any, environment: Mapping[str, str]) -> Any:
    """Mappings and lists without secrets; call it before YAML folds long values into lines."""
    match value:
        case Mapping():
            return {
                key: _scrub_all(x) if KEY.fullmatch(str(key)) else scrub_tree(x, environment)
                for key, x in value.items()
            }
        case list():
            return [scrub_tree(item, environment) for item in value]
        case str():
            return scrub_word(value, environment)
    return value


def scrub_config(text: str, environment: Mapping[str, str]) -> str:
    """A configuration in YAML; the same text if no secret is in it."""
    tree = yaml.safe_load(text)
    clean = scrub_tree(tree, environment)
    if clean == tree:
        return text
    return yaml.dump(clean, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _scrub_all(item: Any) -> Any:
    match item:
        case Mapping():
            return {key: _scrub_all(inner) for key, inner in item.items()}
        case list():
            return [_scrub_all(inner) for inner in item]
        case None | bool():
            return item
    return _hide(str(item))


def _hide(value: str) -> str:
    """The value redacted, unless it is empty, a truth value or a reference such as $NAME."""
    is_plain = value.lower() in ("null", "none", "true", "false", "???", "")
    return value if is_plain or value.startswith("$") else REDACTED


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes strings that OmegaConf, unlike PyYAML, would read as numbers."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if re.fullmatch(r"[-+]?[\d._]+(e[-+]?\d+)?", text, re.I) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
