"""`openai:MODEL@URL`: which model at which address, and which key it may be shown. Keys come from the environment."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from velox_eval.errors import ConfigError, JudgeError

KEY_VARIABLE = "VELOX_EVAL_JUDGE_KEY"  # for any address
OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"  # for encrypted addresses and this machine
DEFAULT_URL = "https://api.openai.com/v1"
_FORM = "write openai:MODEL@https://HOST/v1, or openai:MODEL for OpenAI itself"
_NAMED = re.compile(r"(?P<model>.+?)@(?P<url>https?://.*)", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """A model and the base address (without a final slash) that serves it."""

    model: str
    url: str

    @property
    def host(self) -> str:
        """Host and, where one is given, port."""
        return urlsplit(self.url).netloc

    @property
    def is_openai(self) -> bool:
        """Whether this is OpenAI's own service rather than one that speaks its language."""
        return self.host == urlsplit(DEFAULT_URL).netloc


def parse_address(text: str) -> Address:
    """Returns what follows `openai:`; an address without a path gets /v1.

    Raises ConfigError for anything else, and for an address that holds a password or a query: it would be stored.
    What was given is not repeated in the message then.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        if not text or "://" in text or text.count("@") > text.startswith("@"):
            raise ConfigError(f"the judge is no model at an http:// or https:// address; {_FORM}")
        return Address(text, DEFAULT_URL)
    try:
        url = urlsplit(match["url"])
        _ = url.port
    except ValueError:
        raise ConfigError(f"the judge's address is no URL; {_FORM}") from None
    if "@" in url.netloc or "@" in url.path or url.query or url.fragment:
        raise ConfigError(
            "the judge's address holds a user name, a query or a fragment, which would be stored with the run; "
            f"put a key in ${KEY_VARIABLE} instead"
        )
    if not url.hostname or re.search(r"[\s\x00-\x1f\x7f]", match["url"]):
        raise ConfigError(f"the judge's address has no host; {_FORM}")
    return Address(
        match["model"], SplitResult(url.scheme, url.netloc.lower(), url.path.rstrip("/") or "/v1", "", "").geturl()
    )


def find_key(address: Address) -> tuple[str, str]:
    """Returns (key, variable it is from), or two empty strings: servers of one's own often want none.

    $VELOX_EVAL_JUDGE_KEY is for any address. $OPENAI_API_KEY goes to encrypted addresses and this machine alone.
    Raises JudgeError for a key with characters that cannot be sent.
    """
    for name in (KEY_VARIABLE, OPENAI_KEY_VARIABLE):
        key = os.environ.get(name, "").strip()
        if not key or (name == OPENAI_KEY_VARIABLE and not _safe(address)):
            continue
        if not (key.isascii() and key.isprintable()):
            raise JudgeError(f"${name} holds characters that no key has; set it again")
        return key, name
    return "", ""


def _safe(address: Address) -> bool:
    url = urlsplit(address.url)
    if url.scheme == "https" or url.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(url.hostname or "").is_loopback
    except ValueError:
        return False
