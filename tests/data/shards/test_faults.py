"""The errors of the libraries that are installed, as they raise them, and what is made of each."""

import errno
import socket
from types import SimpleNamespace

import pytest
from later import later

from dali_pipes.data.shards.faults import Fault, judge

botocore = later("botocore.exceptions")
aiohttp = later("aiohttp")
connection = later("aiohttp.client_reqrep", needs="aiohttp")
s3_errors = later("s3fs.errors", needs="s3fs")
NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def answer(code, status):
    """As s3fs makes an error of S3's answer."""
    response = {
        "Error": {"Code": code, "Message": code},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return s3_errors.translate_boto_error(botocore.ClientError(response, "GetObject"))


def judged(error, has_answered=False):
    return judge(error, has_answered)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("NoSuchBucket", 404, Fault.MISSING),
        ("NoSuchKey", 404, Fault.MISSING),
        ("AccessDenied", 403, Fault.REFUSED),
        ("InvalidAccessKeyId", 403, Fault.REFUSED),
        ("ExpiredToken", 400, Fault.REFUSED),
        ("MethodNotAllowed", 405, Fault.REFUSED),
        ("InvalidBucketName", 400, Fault.UNANSWERED),
        ("AuthorizationHeaderMalformed", 400, Fault.UNANSWERED),
        ("RequestTimeout", 400, Fault.PASSING),
        ("SlowDown", 503, Fault.PASSING),
        ("InternalError", 500, Fault.PASSING),
        ("OperationAborted", 409, Fault.PASSING),
    ],
)
def test_answers_of_s3(code, status, expected):
    assert judged(answer(code, status)) == expected


def test_errors_of_botocore():
    lost = botocore.CredentialRetrievalError(provider="x", error_msg="y")
    for error in (
        lost,
        botocore.EndpointConnectionError(endpoint_url="x", error=NO_NAME),
    ):
        assert judged(error) is Fault.UNANSWERED
    assert judged(lost, has_answered=True) is Fault.PASSING
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    for passing in (
        botocore.EndpointConnectionError(endpoint_url="x", error=refused),
        botocore.ReadTimeoutError(endpoint_url="x"),
        botocore.ConnectionClosedError(endpoint_url="x"),
        botocore.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ):
        assert judged(passing) is Fault.PASSING


@pytest.mark.parametrize("has_answered", [False, True])
def test_what_is_refused_before_it_is_sent_does_not_depend_on_the_store(has_answered):
    """Nor is it asked ten times, as what may pass is."""
    offline = type("OfflineModeIsEnabled", (ConnectionError,), {})()  # of huggingface_hub
    for error in (
        botocore.NoCredentialsError(),
        botocore.PartialCredentialsError(provider="x", cred_var="y"),
        botocore.ProfileNotFound(profile="x"),
        botocore.ParamValidationError(report="Invalid bucket name"),
        aiohttp.InvalidURL("http://:"),
        offline,
    ):
        assert judged(error, has_answered) is Fault.UNANSWERED, error


def test_errors_of_aiohttp():
    key = connection.ConnectionKey("host", 80, False, True, None, None, None)
    assert judged(aiohttp.ClientConnectorDNSError(key, NO_NAME)) is Fault.UNANSWERED
    assert judged(aiohttp.ClientConnectorDNSError(key, NO_NAME), has_answered=True) is Fault.PASSING
    assert (
        judged(aiohttp.ClientConnectorDNSError(key, socket.gaierror(socket.EAI_AGAIN, "for now")))
        is Fault.UNANSWERED
    )
    assert (
        judged(aiohttp.ClientConnectorError(key, OSError(errno.ENETUNREACH, "no route")))
        is Fault.UNANSWERED
    )
    assert (
        judged(aiohttp.ClientConnectorError(key, OSError(errno.ECONNREFUSED, "refused")))
        is Fault.PASSING
    )
    assert (
        judged(aiohttp.ServerDisconnectedError()) is Fault.PASSING
        and judged(aiohttp.ClientPayloadError("cut")) is Fault.PASSING
    )
    hidden = FileNotFoundError("http://host/x")  # as fsspec's HTTP raises it of every error
    for status, expected in (
        (404, Fault.MISSING),
        (410, Fault.MISSING),
        (401, Fault.REFUSED),
        (403, Fault.REFUSED),
        (500, Fault.PASSING),
        (429, Fault.PASSING),
        (503, Fault.PASSING),
    ):
        hidden.__cause__ = aiohttp.ClientResponseError(
            SimpleNamespace(real_url="http://host/x"), (), status=status
        )
        assert judged(hidden) == expected, status
    hidden.__cause__ = aiohttp.ServerDisconnectedError()
    assert judged(hidden) is Fault.PASSING


def test_errors_of_httpcore_and_urllib3_hold_what_caused_them():
    class ConnectError(Exception):
        pass

    class MaxRetryError(Exception):
        reason = NO_NAME

    assert (
        judged(ConnectError(NO_NAME)) is judged(ConnectError(MaxRetryError())) is Fault.UNANSWERED
    )


def test_an_error_of_the_caller_is_none_of_the_store():
    """Python notes what was being handled as the context of what is raised."""
    try:
        raise FileNotFoundError("of the caller")
    except FileNotFoundError:
        try:
            raise ConnectionResetError("reset")
        except ConnectionResetError as error:
            assert (
                isinstance(error.__context__, FileNotFoundError) and judged(error) is Fault.PASSING
            )
