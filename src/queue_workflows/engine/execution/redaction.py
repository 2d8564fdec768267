"""Text that may be stored or logged: secrets masked, bounded, and nothing in it that Postgres refuses.

Two nets: the literal secrets that the process knows (its DSN's password), and the shapes in which secrets
usually travel. Every pattern is linear in the text, because the text comes from whatever went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

MASK: Final = "***"
# More than is ever shown is masked, so that no cut can leave a piece of a secret that no pattern knows.
_LOOKED_AT: Final = 65_536
_SHORTEST_LITERAL: Final = 4

_NAME = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key"
    r"|credentials?|signature)"
)
_IS = r"(?:\\?[\"'])?\s{0,8}[:=]\s{0,8}"
# Quoted, or begun with a quote that something cut off, or bare.
_VALUE = (
    r"""(?:(?P<quote>\\?["'])(?:(?!(?P=quote)).){1,4096}(?P=quote)"""
    r"""|\\?["'][^\s"']{1,4096}|[^\s,;&)'"}\]]{1,4096})"""
)
_TELLTALE = r"(?=[^\s\"',]{0,200}\d)[\w.~+/=-]{8,8192}"

# What is matched after the first group is masked.
_SHAPES: Final = tuple(
    re.compile(shape, re.IGNORECASE | re.DOTALL)
    for shape in (
        r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(?=-----END |\Z)",
        # scheme://user:password@host
        r"(://[^\s/@:'\"]*:)[^\s/'\"]*(?=@)",
        # Authorization: Bearer …, as a header line or in the repr of a dict of headers
        rf"(authorization{_IS}(?:b?\\?[\"'])?(?:[a-z-]{{1,20}}\s{{1,8}})?)[^\s,'\"\\]{{3,8192}}",
        rf"(cookie{_IS}(?:b?\\?[\"'])?)[^'\"\r\n]{{1,8192}}",
        rf"(\bbearer\s{{1,8}}){_TELLTALE}",
        # password=…, "password": "…", and on a command line --password …
        rf"({_NAME}{_IS}){_VALUE}",
        # PASSWORD '…', as in SQL
        rf"(password\s{{1,8}})(?=[\"']){_VALUE}",
        rf"(--[a-z-]{{0,40}}(?:{_NAME}|token)\s{{1,8}})(?!-){_VALUE}",
        # `token` and `sig` are ordinary words as well: with an equals sign, quoted as in JSON, or telltale.
        rf"((?:token|\bsig)(?:\\?[\"'])?\s{{0,8}}=\s{{0,8}}|token\\?[\"']\s{{0,8}}:\s{{0,8}}){_VALUE}",
        rf"((?:\btoken|\bx-[a-z-]{{0,30}}(?:key|token)){_IS}){_TELLTALE}",
    )
)
# Tokens that say what they are by how they begin; here case matters.
_TOKENS: Final = re.compile(
    r"(?<![\w-])(?:"
    r"(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}"
    r"|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|npm_\w{20,}|hf_\w{20,}|pypi-[\w-]{16,}"
    r"|xox[abeprs]-[\w-]{10,}|sk-[\w-]{16,}|[srp]k_(?:live|test)_\w{8,}|AIza[\w-]{35}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r")"
)
# Each text that a shape or a token matches has one of these in it; to look for them takes a hundredth of the
# time. With letters beyond ASCII it is not that simple, as some of them count as these.
_SIGNS: Final = (
    *("@", "pass", "pwd", "secret", "key", "credential", "sig", "authorization", "cookie", "bearer", "token"),
    *("akia", "asia", "aroa", "aida", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("npm_", "hf_", "pypi-", "xox", "sk-", "k_live_", "k_test_", "aiza", "eyj"),
)


class Redactor:
    """Masks the secrets it was told and the shapes it knows."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are masked wherever they stand, also percent-encoded; too short ones would hit words."""
        spelled = {text for secret in secrets for text in (secret, quote(secret, safe=""))}
        kept = sorted((text for text in spelled if len(text) >= _SHORTEST_LITERAL), key=len, reverse=True)
        self._literal = re.compile("|".join(map(re.escape, kept))) if kept else None

    def mask(self, text: str) -> str:
        """The text with its secrets masked."""
        if self._literal is not None:
            text = self._literal.sub(MASK, text)
        if text.isascii():
            plain = text.lower()
            if not any(sign in plain for sign in _SIGNS):
                return text
        for shape in _SHAPES:
            text = shape.sub(rf"\1{MASK}", text)
        return _TOKENS.sub(MASK, text)

    def head(self, text: str, longest: int) -> str:
        """The beginning, for a message."""
        masked = self.mask(_storable(text[:_LOOKED_AT]))
        return masked if len(masked) <= longest else masked[: longest - 1] + "…"

    def tail(self, text: str, longest: int) -> str:
        """The end, for a traceback, from the beginning of a line."""
        if len(text) > _LOOKED_AT:
            text = _from_next_word(text[-_LOOKED_AT:])
        masked = self.mask(_storable(text))
        if len(masked) <= longest:
            return masked
        kept = masked[2 - longest :]
        return "…\n" + (kept.partition("\n")[2] or kept)


def _storable(text: str) -> str:
    """Without NUL, and with `?` for a lone surrogate: neither can be sent to Postgres."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def _from_next_word(text: str) -> str:
    """Without what may be the rest of a word that was cut."""
    cut = re.search(r"\s", text)
    return text[cut.end() :] if cut else ""
