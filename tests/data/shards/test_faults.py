"""The errors of the libraries that are installed, as they raise them, and what is made of each."""

import errno
import socket
from types import SimpleNamespace

import pytest
from later import later

from dali_pipes.data.shards.faults import judge

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
    fault = judge(error, "s3://bucket/x.tar", has_answered)
    return fault and ("missing" if fault.is_missing else fault.attempts)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("NoSuchBucket", 404, "missing"),
        ("NoSuchKey", 404, "missing"),
        ("AccessDenied", 403, 1),
        ("InvalidAccessKeyId", 403, 1),
        ("ExpiredToken", 400, 1),
        ("MethodNotAllowed", 405, 1),
        ("InvalidBucketName", 400, 2),
        ("AuthorizationHeaderMalformed", 400, 2),
        ("RequestTimeout", 400, None),
        ("SlowDown", 503, None),
        ("InternalError", 500, None),
        ("OperationAborted", 409, None),
    ],
)
def test_answers_of_s3(code, status, expected):
    assert judged(answer(code, status)) == expected


def test_errors_of_botocore():
    assert (
        judged(botocore.NoCredentialsError())
        == 2
        == judged(botocore.NoCredentialsError(), has_answered=True)
    )
    assert judged(botocore.CredentialRetrievalError(provider="x", error_msg="y")) == 2
    assert (
        judged(botocore.CredentialRetrievalError(provider="x", error_msg="y"), has_answered=True)
        is None
    )
    assert judged(botocore.ProfileNotFound(profile="x")) == 1
    assert judged(botocore.ParamValidationError(report="Invalid bucket name")) == 1
    assert judged(botocore.EndpointConnectionError(endpoint_url="x", error=NO_NAME)) == 2
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    for passing in (
        botocore.EndpointConnectionError(endpoint_url="x", error=refused),
        botocore.ReadTimeoutError(endpoint_url="x"),
        botocore.ConnectionClosedError(endpoint_url="x"),
        botocore.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ):
        assert judged(passing) is None


def test_errors_of_aiohttp():
    key = connection.ConnectionKey("host", 80, False, True, None, None, None)
    assert judged(aiohttp.ClientConnectorDNSError(key, NO_NAME)) == 2
    assert judged(aiohttp.ClientConnectorDNSError(key, NO_NAME), has_answered=True) is None
    assert (
        judged(aiohttp.ClientConnectorDNSError(key, socket.gaierror(socket.EAI_AGAIN, "for now")))
        == 4
    )
    assert judged(aiohttp.ClientConnectorError(key, OSError(errno.ENETUNREACH, "no route"))) == 4
    assert judged(aiohttp.ClientConnectorError(key, OSError(errno.ECONNREFUSED, "refused"))) is None
    assert (
        judged(aiohttp.ServerDisconnectedError()) is None
        and judged(aiohttp.ClientPayloadError("cut")) is None
    )
    hidden = FileNotFoundError("http://host/x")  # as fsspec's HTTP raises it of every error
    for status, expected in (
        (404, "missing"),
        (410, "missing"),
        (401, 1),
        (403, 1),
        (500, None),
        (429, None),
        (503, None),
    ):
        hidden.__cause__ = aiohttp.ClientResponseError(
            SimpleNamespace(real_url="http://host/x"), (), status=status
        )
        assert judged(hidden) == expected, status
    hidden.__cause__ = aiohttp.ServerDisconnectedError()
    assert judged(hidden) is None


def test_errors_of_httpcore_and_urllib3_hold_what_caused_them():
    class ConnectError(Exception):
        pass

    class MaxRetryError(Exception):
        reason = NO_NAME

    assert judged(ConnectError(NO_NAME)) == judged(ConnectError(MaxRetryError())) == 2


def test_an_error_of_the_caller_is_none_of_the_store():
    """Python notes what was being handled as the context of what is raised."""
    try:
        raise FileNotFoundError("of the caller")
    except FileNotFoundError:
        try:
            raise ConnectionResetError("reset")
        except ConnectionResetError as error:
            assert isinstance(error.__context__, FileNotFoundError) and judged(error) is None
