"""What an error of an object store means: whether the request may succeed when it is sent again.

Each library has errors of its own, and most libraries are not installed. So errors are recognized
by the names of their types, by the HTTP status, and by what caused them. `judge` does this for
store_requests.py, which sends requests again.
"""

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

# of botocore, google.auth, Azure, huggingface_hub, aiohttp and httpx, by the names of their types
_LOGIN = re.compile(r".*(Credential|Token|SSO|Authentication).*|RefreshError")
# what a library refuses before it sends anything, whether the store has answered before or not
_NEVER_SENT = re.compile(
    r"(No|Partial)CredentialsError|ProfileNotFound|ConfigNotFound|ConfigParseError"
    r"|InvalidConfigError|ParamValidationError|InvalidURL|UnsupportedProtocol|InvalidProtocol"
    r"|EndpointProviderError|OfflineModeIsEnabled"
)
_MISSING = (404, 410)
# no permission, or the server does not do this at all
_REFUSED = (401, 402, 403, 405, 407, 451, 501, 505)
_PASSING = (408, 409, 423, 425, 429)  # of the 4xx, which HTTP calls errors of the sender
_NO_NETWORK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


class Fault(Enum):
    """What is wrong with a request that failed."""

    MISSING = auto()  # there is no such object
    REFUSED = auto()  # the store does not do it, or not for this user
    UNANSWERED = auto()  # the login, the settings, the host's name or the network may be wrong
    PASSING = auto()  # it may succeed later


def judge(error: BaseException, has_answered: bool) -> Fault:
    """Judges an error of a request.

    Args:
        has_answered: whether the store has answered this process before. Its name and the login
            were right then, so an error of these may pass.
    """
    for cause in _causes(error):
        status = _status_of(cause)
        # whatever error it is wrapped in: a slow store may answer later
        if isinstance(cause, TimeoutError):
            return Fault.PASSING
        if status in _MISSING:
            return Fault.MISSING

        refusals = PermissionError | NotImplementedError | ssl.SSLCertVerificationError
        if isinstance(cause, refusals) or status in _REFUSED:
            return Fault.REFUSED

        names = [kind.__name__ for kind in type(cause).__mro__]
        if any(map(_NEVER_SENT.fullmatch, names)):
            return Fault.UNANSWERED
        if not has_answered and (
            any(map(_LOGIN.fullmatch, names))
            or (400 <= status < 500 and status not in _PASSING)
            or isinstance(cause, socket.gaierror)
            or (isinstance(cause, OSError) and cause.errno in _NO_NETWORK)
        ):
            return Fault.UNANSWERED

    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return Fault.MISSING if is_missing and not _hides_another(error) else Fault.PASSING


def shorten(error: BaseException) -> str:
    """The message of an error in one line, of 200 characters at most."""
    told = error.__cause__ if _hides_another(error) and error.__cause__ else error
    return (" ".join(str(told).split()) or type(told).__name__)[:200]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and what caused it, in each library's way of saying so.

    `__context__` is left out, since it may be an error of the caller.
    """
    seen: set[int] = set()
    left: list[Any] = [error]
    while left:
        cause = left.pop(0)
        if not isinstance(cause, BaseException) or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause

        options = getattr(cause, "kwargs", None)
        # botocore keeps the cause in kwargs
        left += [cause.__cause__, options.get("error") if isinstance(options, dict) else None]
        # aiohttp, urllib3 and httpcore, in this order
        left += [getattr(cause, "os_error", None), getattr(cause, "reason", None), *cause.args]


def _hides_another(error: BaseException) -> bool:
    """Whether a FileNotFoundError only stands for another error.

    fsspec's HTTP raises it for all errors.
    """
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    harmless = (LookupError, FileNotFoundError, NotADirectoryError)
    return (
        cause is not None and not isinstance(cause, harmless) and _status_of(cause) not in _MISSING
    )


def _status_of(error: BaseException) -> int:
    """The HTTP status of an error; 0: it has none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)

    for value in (getattr(error, name, None) for name in ("status", "status_code", "code")):
        if isinstance(value, int | str) and str(value).isdecimal() and 100 <= int(value) < 600:
            return int(value)

    status = response if isinstance(response, int) else getattr(response, "status_code", None)
    return status if isinstance(status, int) else 0
