"""What an error of an object store means: whether it may pass, and if not, what is wrong.

Each library has errors of its own, and most libraries are not installed. So errors are recognized
by the names of their types, by the HTTP status, and by what caused them. `judge` does this for
store_requests.py, which sends requests again.
"""

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

_SETTINGS = "docs/object-stores.md has the settings of stores"

# errors by the names of their types
_NEVER_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}  # botocore's
_NO_CREDENTIALS = {
    *("CredentialRetrievalError", "NoAuthTokenError", "TokenRetrievalError"),
    *("SSOError", "SSOTokenLoadError", "UnauthorizedSSOTokenError"),  # botocore's, as those before
    *("DefaultCredentialsError", "RefreshError"),  # google.auth's
    *("ClientAuthenticationError", "CredentialUnavailableError"),  # Azure's
    "LocalTokenNotFoundError",  # Hugging Face's
}
_WRONG_SETTINGS = {
    *("ProfileNotFound", "ConfigNotFound", "ConfigParseError", "InvalidConfigError"),
    *("ParamValidationError", "InvalidURL", "UnsupportedProtocol", "InvalidProtocol"),
    *("EndpointProviderError", "OfflineModeIsEnabled"),
}

_MISSING = (404, 410)
_REFUSED = (401, 402, 403, 407, 451)
_NEVER = (405, 501, 505)  # the server does not do this at all
_MAY_PASS = (408, 409, 423, 425, 429)  # of the 4xx, which HTTP calls errors of the sender
_NO_NETWORK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
_ATTEMPTS_WITHOUT_NETWORK = 4


class Fault(NamedTuple):
    """An error that is not, or seldom, mended by sending the request again.

    Attributes:
        attempts: how often such a request is sent in all.
        words: what is wrong.
        is_missing: there is no such object.
        is_refused: the store does not let this user do it.
        soon: whether the first failure is logged as a warning.
    """

    attempts: int
    words: str = ""
    is_missing: bool = False
    is_refused: bool = False
    soon: bool = False


def judge(error: BaseException, url: str, has_answered: bool) -> Fault | None:
    """Judges an error of a request; None: it may pass.

    Args:
        url: the object that was asked for.
        has_answered: whether the store has answered this process before. Its name and the login
            were right then, so an error of these may pass.
    """
    for cause in _causes(error):
        # whatever error it is wrapped in: a slow store may answer later
        if isinstance(cause, TimeoutError):
            return None
        if fault := _judge_one(cause, url, has_answered, shorten(error)):
            return fault

    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError) and not _hides_another(
        error
    )
    return Fault(1, is_missing=True) if is_missing else None


def shorten(error: BaseException) -> str:
    """The message of an error in one line, of 200 characters at most."""
    told = error.__cause__ if _hides_another(error) and error.__cause__ else error
    return (" ".join(str(told).split()) or type(told).__name__)[:200]


def _judge_one(error: BaseException, url: str, has_answered: bool, outermost: str) -> Fault | None:
    what = shorten(error)
    names, status = {kind.__name__ for kind in type(error).__mro__}, _status_of(error)
    host = "/".join(url.split("/")[:3])

    # what a library finds out before the store answers
    if names & _NEVER_CREDENTIALS or (names & _NO_CREDENTIALS and not has_answered):
        return Fault(2, f"no credentials ({what}); {_SETTINGS}")
    if names & _WRONG_SETTINGS:
        return Fault(1, f"{what}; correct the URL or the settings of its store")
    if isinstance(error, NotImplementedError):
        return Fault(1, f"{host} cannot do that ({what}); download it")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Fault(1, f"the certificate of {host} is not trusted ({what})")

    # what the server says
    if status in _MISSING:
        return Fault(1, is_missing=True)
    if isinstance(error, PermissionError) or status in _REFUSED:
        return Fault(1, f"no permission ({what}); {_SETTINGS}", is_refused=True)
    if status in _NEVER:
        return Fault(1, f"{host} does not do that ({what})")
    if 400 <= status < 500 and status not in _MAY_PASS and not has_answered:
        return Fault(2, f"{host} refuses it ({what}); {_SETTINGS}")

    # what the network says, as long as the store has not answered
    if isinstance(error, socket.gaierror) and not has_answered:
        # the outermost error names the host
        what = outermost if what in outermost else f"{outermost}: {what}"
        # with EAI_AGAIN no name server answered, so nothing is known of the name
        if error.errno != socket.EAI_AGAIN:
            return Fault(2, f"the name of its host is not known ({what})")
        return Fault(_ATTEMPTS_WITHOUT_NETWORK, f"no name can be looked up ({what})", soon=True)
    if isinstance(error, OSError) and error.errno in _NO_NETWORK and not has_answered:
        return Fault(_ATTEMPTS_WITHOUT_NETWORK, f"{host} cannot be reached ({what})", soon=True)
    return None


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
