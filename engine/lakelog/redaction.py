"""`redact`: removes credentials from texts.

Drivers include their settings in errors: URLs with a signature, request headers, connection
strings. The texts of every error, log line and span of lakelog are redacted.

Removed are: the user and password of a URL; the values of query parameters and of settings
with secret names, the ``Authorization`` and ``Cookie`` headers; and, wherever they occur, the
secret values of the ``storage_options`` that stores were opened with, and the passwords of their
locations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

REDACTED = "[redacted]"

_LEAST_CHARACTERS = 6  # a shorter secret is part of ordinary words
_MOST_SECRETS = 4096

# How names of settings, headers and query parameters end; not names that only contain such a word.
# Hadoop appends the host of an Azure account.
_NAME = (
    r"(?:(?<![a-z0-9])(?:x-(?:amz|goog|ms)-(?:signature|credential|security-token)|signature|sig"
    r"|awsaccesskeyid)|(?:password|passwd|passphrase|pwd|secret|token|account[_.-]?key"
    r"|access[_.-]?key(?:[_.-]?id)?|shared[_.-]?access[_.-]?(?:key|signature)|secret[_.-]?key"
    r"|api[_.-]?key|private[_.-]?key|credentials?)"
    r"(?:\.[a-z0-9-]{1,40}\.(?:blob|dfs)\.[a-z0-9.-]{1,40})?)"
)
_SCHEMES = "bearer|basic|sharedkey|aws4-hmac-sha256"
# A value with blanks is quoted; any other ends at a delimiter of a URL, a list or a JSON text.
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s&;,"'<>\]})]+)"""
# The working directory in an environment; in a connection string, PWD is a password.
_WORKING_DIRECTORY = (
    r"(?:(?<![\w.-])|(?<=\bOLD))(?<![;&])(?<![;&]\s)(?-i:PWD)=/[\w./~+-]*(?:[\s\"',)\]}]|\Z)"
)
# A login whose password has a delimiter of a URL, up to the last "@"; a number after a name with a
# dot is a port. It ends before the next URL, so that no text is scanned twice.
_USER = r"[^/\s?#:@]*"
_SERVER = rf"(?:localhost|\[[0-9a-f:.]*\]|(?=[^/\s?#:@.]*\.){_USER}):[0-9]{{1,5}}[/?#]"
_LONG_LOGIN = rf"://(?!{_SERVER})({_USER}:((?:(?!://)[^\s\"'<>])+))@"
# A log determines the length of texts, such as paths. Each rule begins with fixed words: one that
# begins with a repetition scans the rest of the text from every character.
_RULES = (
    # A password may contain "@": the host begins after the last one.
    (re.compile(r"://[^/\s?#]+@"), f"://{REDACTED}@"),
    (re.compile(_LONG_LOGIN, re.IGNORECASE), f"://{REDACTED}@"),
    (
        re.compile(
            rf"((?:authorization|cookie)[\"']?\s*[:=]\s*+[\"']?(?:{_SCHEMES})?"
            rf"\s*+)(?!\[redacted\]|(?:{_SCHEMES})\b)[^\s\"',;][^\"'\r\n]*",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b(bearer\s+)[a-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(
            rf"(?!{_WORKING_DIRECTORY})({_NAME}[\"']?\s*(?:=|:)\s*)(?!\[redacted\]){_VALUE}",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
)
_MARKS = re.compile(r"[=@:]|bearer", re.IGNORECASE)
_OPTION = re.compile(rf"{_NAME}$|^key$|connection_?string", re.IGNORECASE)

# User and password of a URL, without the scheme; a user alone is Azure's name of a container.
_LOGINS = (
    re.compile(r"://([^/\s?#:]*:([^/\s?#]+))@"),
    re.compile(_LONG_LOGIN, re.IGNORECASE),
)
_DELIMITER = re.compile(r"[/?#]")
# The path of a file, whose folders may be partition values such as token=a. The name of the file
# has a suffix, because a secret may contain "/".
_FILE = re.compile(r"[^\s;&?:\"'<>]*/[^\s;&?:\"'<>/=]*\.[a-z0-9]{2,8}")
_WORD = re.compile(r"[A-Za-z0-9_.-]+")

_secrets: dict[str, None] = {}


def redact(text: str) -> str:
    """A text with ``[redacted]`` in place of credentials.

    >>> redact("GET https://me:pw@host/x?sig=a%2Fb&v=1 failed")
    'GET https://[redacted]@host/x?sig=[redacted]&v=1 failed'
    """
    found = [secret for secret in tuple(_secrets) if secret in text]
    # A secret such as "secret" may be part of a setting's name, by which the rules find its value;
    # a secret with a delimiter would be redacted only in part by a rule.
    words = [secret for secret in found if _WORD.fullmatch(secret)]
    for secret in found:
        if secret not in words:
            text = text.replace(secret, REDACTED)
    if _MARKS.search(text):
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
    for secret in words:
        text = text.replace(secret, REDACTED)
    return text


def redact_path(path: str) -> str:
    """A redacted path if it is a URL; other paths may have partition values such as ``token=a``."""
    return redact(path) if "://" in path else path


def redacted(value: Any) -> Any:
    """A redacted value for a message: texts are redacted, and exceptions by their own text."""
    if isinstance(value, str):
        return value if _is_file(value) else redact(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple) and all(isinstance(v, str) and _is_file(v) for v in value):
        return value
    text = str(value)
    clean = redact(text)
    return value if clean == text else clean


def _is_file(text: str) -> bool:
    """Whether a text is the path of a file, without a registered secret."""
    return bool(_FILE.fullmatch(text)) and not any(secret in text for secret in tuple(_secrets))


def register_secrets(options: Mapping[str, Any] | None) -> None:
    """Redact the secret values of a store's options from now on, in this process."""
    for name, value in (options or {}).items():
        if isinstance(value, Mapping):
            register_secrets(value)
        elif (
            isinstance(value, str) and len(value) >= _LEAST_CHARACTERS and _OPTION.search(str(name))
        ):
            _register(value)


def register_location(location: str) -> None:
    """Redact user and password of a URL from now on: drivers repeat them without the scheme."""
    short, long = _LOGINS
    for login, password in short.findall(location) or long.findall(location):
        # A driver divides a URL at the delimiters in a password: "user:pa" is then the host.
        head, *_ = _DELIMITER.split(login)
        for text in (login, unquote(login), *([] if head.endswith(":") else [head])):
            _register(text)
        for text in (password, unquote(password), *_DELIMITER.split(password)):
            if len(text) >= _LEAST_CHARACTERS:
                _register(text)


def _register(secret: str) -> None:
    _secrets.pop(secret, None)
    _secrets[secret] = None
    while len(_secrets) > _MOST_SECRETS:
        del _secrets[next(iter(_secrets))]


def scrub(error: BaseException) -> None:
    """Redact a driver's error and its causes in place, because a traceback shows them too."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        each = ahead.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        ahead += [each.__cause__, each.__context__]
        clean = tuple(redact(a) if isinstance(a, str) else a for a in each.args)
        if clean != each.args:
            each.args = clean
        for name, value in list(getattr(each, "__dict__", {}).items()):
            if isinstance(value, str) and (text := redact(value)) != value:
                try:
                    setattr(each, name, text)
                except (AttributeError, TypeError):  # a read-only attribute
                    continue
