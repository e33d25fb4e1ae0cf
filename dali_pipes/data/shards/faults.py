"""What an error of a store means: whether it may pass, and if not, what a person can do.

Each library has errors of its own, and most are not installed, so they are told by the names of
their types, by HTTP's status and by what caused them.
"""

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

_LOGINS = {
    "s3": (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; of a public bucket "
        "set FSSPEC_S3_ANON=true"
    ),
    "gs": "run gcloud auth application-default login; of a public bucket set FSSPEC_GS_TOKEN=anon",
    "hf": "run hf auth login, or set HF_TOKEN",
    "http": (
        'write {"http": {"headers": {"Authorization": "Bearer …"}}} into '
        "~/.config/fsspec/http.json, or download it"
    ),
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "https": "http"}

# the names of types
_NO_CREDENTIALS = {
    *(
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "NoAuthTokenError",
        "TokenRetrievalError",
    ),
    *("SSOError", "SSOTokenLoadError", "UnauthorizedSSOTokenError"),  # botocore's, as those before
    *("DefaultCredentialsError", "RefreshError"),  # google.auth's
    *("ClientAuthenticationError", "CredentialUnavailableError"),  # Azure's
    "LocalTokenNotFoundError",  # Hugging Face's
}
_NO_PROFILE = {"ProfileNotFound", "ConfigNotFound", "ConfigParseError", "InvalidConfigError"}
_BAD_ADDRESS = {
    "ParamValidationError",
    "InvalidURL",
    "UnsupportedProtocol",
    "InvalidProtocol",
    "EndpointProviderError",
}
_OFFLINE = {"OfflineModeIsEnabled"}

_MISSING = (404, 410)
_REFUSED = (401, 402, 403, 407, 451)
_NEVER = (405, 501, 505)  # the server does not do such a thing
_MAY_PASS = (408, 409, 423, 425, 429)  # of the errors that are the sender's by HTTP
_NO_NETWORK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
_ATTEMPTS_WITHOUT_NETWORK = 4


class Fault(NamedTuple):
    """An error that sending the request again does not mend, or not often.

    Attributes:
        attempts: how often such a request is sent.
        words: what it is and what to do.
        is_missing: there is no such object.
        is_refused: the store does not let this user do it.
        soon: whether a warning says so at the first failure.
    """

    attempts: int
    words: str = ""
    is_missing: bool = False
    is_refused: bool = False
    soon: bool = False


def judge(error: BaseException, url: str, has_answered: bool) -> Fault | None:
    """None: it may pass.

    Args:
        has_answered: whether the store has answered this process before: its name and the login
            were right then, and an error of these may pass.
    """
    for each in _causes(error):
        if isinstance(each, TimeoutError):
            return None
        if fault := _judge_one(each, url, has_answered, shorten(error)):
            return fault
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError) and not _hides_another(
        error
    )
    return Fault(1, is_missing=True) if is_missing else None


def shorten(error: BaseException) -> str:
    """What it says, in one line."""
    told = error.__cause__ if _hides_another(error) and error.__cause__ else error
    return (" ".join(str(told).split()) or type(told).__name__)[:200]


def _judge_one(error: BaseException, url: str, has_answered: bool, outermost: str) -> Fault | None:
    what = shorten(error)
    names, status = {kind.__name__ for kind in type(error).__mro__}, _status_of(error)
    scheme = url.split("://")[0]
    login = _LOGINS.get(
        _ALIASES.get(scheme, scheme),
        "give the credentials that its package asks for (docs/shards.md)",
    )
    host = "/".join(url.split("/")[:3])

    if names & _NO_PROFILE:
        return Fault(1, f"{what}; name a profile of ~/.aws/config with AWS_PROFILE, or unset it")
    if names & {"NoCredentialsError", "PartialCredentialsError"} or (
        names & _NO_CREDENTIALS and not has_answered
    ):
        return Fault(2, f"no credentials ({what}); {login}")
    if names & _OFFLINE:
        return Fault(1, f"{what}; unset HF_HUB_OFFLINE, or give a local folder")
    if names & _BAD_ADDRESS:
        return Fault(1, f"{what}; correct the URL")
    if isinstance(error, NotImplementedError):
        return Fault(
            1,
            (
                f"its kind of store, {scheme}://, cannot do that ({what}); download it, and give "
                "the local folder"
            ),
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return Fault(
            1,
            (
                f"the certificate of {host} is not trusted ({what}); correct the URL, or set "
                "SSL_CERT_FILE to your CA's"
            ),
        )

    if status in _MISSING:
        return Fault(1, is_missing=True)
    if isinstance(error, PermissionError) or status in _REFUSED:
        return Fault(
            1, f"no permission ({what}); have the credentials expired? {login}", is_refused=True
        )
    if status in _NEVER:
        return Fault(1, f"{host} does not do that ({what})")
    if 400 <= status < 500 and status not in _MAY_PASS and not has_answered:
        return Fault(
            2, f"{host} refuses it ({what}); correct the URL, or the settings of the store"
        )

    if isinstance(error, socket.gaierror) and not has_answered:
        # the outer one says which host
        what = outermost if what in outermost else f"{outermost}: {what}"
        if error.errno != socket.EAI_AGAIN:
            do = "correct the URL or its endpoint, or connect this machine to the network"
            return Fault(2, f"the name of its host is not known ({what}); {do}")
        return Fault(
            _ATTEMPTS_WITHOUT_NETWORK,
            f"no name can be looked up ({what}); is there a network?",
            soon=True,
        )
    if isinstance(error, OSError) and error.errno in _NO_NETWORK and not has_answered:
        return Fault(
            _ATTEMPTS_WITHOUT_NETWORK,
            f"{host} cannot be reached ({what}); is there a network?",
            soon=True,
        )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, by each library's way to say so. `__context__` may be an error
    of the caller's.
    """
    seen: set[int] = set()
    left: list[Any] = [error]
    while left:
        each = left.pop(0)
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        given = getattr(each, "kwargs", None)
        # botocore's
        left += [each.__cause__, given.get("error") if isinstance(given, dict) else None]
        # aiohttp's, urllib3's, httpcore's
        left += [getattr(each, "os_error", None), getattr(each, "reason", None), *each.args]


def _hides_another(error: BaseException) -> bool:
    """Whether a missing file is only what a file system made of another error, as fsspec's HTTP
    does of all.
    """
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    harmless = (LookupError, FileNotFoundError, NotADirectoryError)
    return (
        cause is not None and not isinstance(cause, harmless) and _status_of(cause) not in _MISSING
    )


def _status_of(error: BaseException) -> int:
    """HTTP's status; 0: it has none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    for value in (getattr(error, name, None) for name in ("status", "status_code", "code")):
        if isinstance(value, int | str) and str(value).isdecimal() and 100 <= int(value) < 600:
            return int(value)
    found = response if isinstance(response, int) else getattr(response, "status_code", None)
    return found if isinstance(found, int) else 0
