"""A real S3 server on this machine, behind a proxy that breaks some of its answers."""

import contextlib
import logging

import fsspec
import pytest
from faulty_proxy import FaultyProxy
from later import later

from dali_pipes.data.shards import store_requests

server, boto3 = later("moto.server", "s3fs"), later("boto3", "flask")
BUCKET = "images"


@contextlib.contextmanager
def s3_server(folders):
    """Its proxy; the bucket has the files of these folders by their prefixes. The environment says
    where the server is.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server.ThreadedMotoServer("127.0.0.1", 0)
    moto.start()
    proxy = FaultyProxy(*moto.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "ACCESS_KEY_ID": "x",
            "SECRET_ACCESS_KEY": "x",
            "DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setattr(store_requests, "_FIRST_PAUSE_S", 0.01)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # of an earlier server
        proxy.client = boto3.client(
            "s3", endpoint_url=f"http://{':'.join(map(str, moto.get_host_and_port()))}"
        )
        proxy.client.create_bucket(Bucket=BUCKET)
        for prefix, folder in folders.items():
            for path in folder.rglob("*"):
                if path.is_file():
                    proxy.client.upload_file(
                        str(path), BUCKET, f"{prefix}/{path.relative_to(folder)}"
                    )
        yield proxy
    proxy.close()
    moto.stop()
