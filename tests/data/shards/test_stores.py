"""Stores of every kind: what they say in a listing and what not, what they cannot do, and what they
refuse.
"""

import io
import multiprocessing
import os
import re
import shutil
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from later import later
from web_server import web_server

import dali_pipes as dp
from dali_pipes import ConfigError, Manifest, ManifestError
from dali_pipes.data.shards import copies, listing, remote, store_requests, traffic

aiohttp = later("aiohttp")

pytestmark = pytest.mark.usefixtures("cache")


class Odd(MemoryFileSystem):
    """A store whose listing and whose answers about one object say what a test lets them say."""

    protocol, cachable, store, pseudo_dirs = "odd", False, {}, [""]
    listed = informed = staticmethod(lambda info: info)
    find = fsspec.AbstractFileSystem.find
    asked, error = [], None

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("odd://", "memory://"))

    def _say(self, method, path):
        self.asked.append((method, path))
        if self.error:
            raise self.error
        return getattr(super(), method)

    def ls(self, path, detail=True, **options):
        infos = self._say("ls", path)(path, detail=True, **options)
        return [self.listed(dict(info)) for info in infos]

    def info(self, path, **options):
        return self.informed(dict(self._say("info", path)(path, **options)))

    def cat_file(self, path, start=None, end=None, **options):
        return self._say("cat_file", path)(path, start, end, **options)


@pytest.fixture
def odd(monkeypatch, store):
    fsspec.register_implementation("odd", Odd, clobber=True)
    for name, value in {"store": {}, "pseudo_dirs": [""], "asked": []}.items():
        monkeypatch.setattr(Odd, name, value)
    monkeypatch.setattr(store_requests, "_answering_stores", set())
    monkeypatch.setattr(store_requests, "_failing_stores", set())
    monkeypatch.setattr(store_requests, "_MAX_PAUSE_S", 0.001)
    for shard in store.iterdir():
        Odd().pipe_file(f"/bucket/train/{shard.name}", shard.read_bytes())
    Odd.asked.clear()
    return monkeypatch


def without(*names):
    return staticmethod(
        lambda info: {name: value for name, value in info.items() if name not in names}
    )


def with_(**more):
    return staticmethod(lambda info: info | more)


def size_of_none(info):
    return info | {"size": None}


LISTINGS = {
    "no size": (staticmethod(size_of_none), with_()),
    "size is missing": (without("size"), with_()),
    "no version": (without("created"), with_()),
    "no version, and of one object an ETag": (without("created"), with_(ETag='"x"')),
    "another time than of one object": (with_(created="2024-01-01T00:00:00Z"), with_()),
    "no version anywhere": (without("created"), without("created")),
    "a time as HTTP has it": (with_(), with_(**{"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"})),
    "a time that cannot be read": (with_(updated="yesterday"), with_(updated="yesterday")),
    "size as text": (staticmethod(lambda info: info | {"size": str(info["size"])}), with_()),
}


SOURCES = ["/*.tar", "/shard-{000000..000003}.tar", "/shard-000000.tar"]


@pytest.mark.parametrize(
    ("say", "source"), [(say, "") for say in LISTINGS] + [("no size", source) for source in SOURCES]
)
def test_what_a_listing_lacks_is_asked_object_by_object(odd, manifest, say, source):
    odd.setattr(Odd, "listed", LISTINGS[say][0])
    odd.setattr(Odd, "informed", LISTINGS[say][1])
    far = Manifest.scan(f"odd://bucket/train{source}", workers=1, progress=False)
    assert (
        len(far) == (11 if "000000.tar" in source and "{" not in source else 37)
        and not far.problems
    )
    assert [far.read(number).tobytes() for number in (0, 10)] == [
        manifest.read(number).tobytes() for number in (0, 10)
    ]


def test_what_a_listing_says_is_not_asked_again(odd):
    assert (
        len(
            listing.list_objects("odd://bucket/train").versions(
                f"shard-00000{number}.tar" for number in range(4)
            )
        )
        == 4
    )
    assert [method for method, _ in Odd.asked] == ["ls", "info"]


def test_class_folders_in_a_store_whose_listing_has_no_sizes(odd, manifest):
    for number in range(37):
        name = manifest.path(number).relative_to(manifest.root)
        Odd().pipe_file(f"/images/{name}", manifest.path(number).read_bytes())
    odd.setattr(Odd, "listed", staticmethod(size_of_none))
    far = Manifest.open("odd://images", progress=False)
    assert len(far) == 37 and far.fingerprint == manifest.fingerprint


def test_a_folder_that_cannot_be_listed_is_not_left_out(odd, manifest):
    """fsspec's `find` passes over it."""
    for name in ("cat", "dog"):
        Odd().pipe_file(f"/images/{name}/1.jpg", manifest.path(0).read_bytes())
    say = Odd._say

    def fail(self, method, path):
        if path.endswith("dog"):
            raise ConnectionResetError("reset by peer")
        return say(self, method, path)

    assert len(Manifest.scan("odd://images", progress=False)) == 2
    odd.setattr(Odd, "_say", fail)
    odd.setattr(store_requests, "_ATTEMPTS", 2)
    with pytest.raises(
        ManifestError,
        match=(
            r"odd://images/dog: cannot be listed \(cannot be fetched \(2 times: reset by "
            r"peer\)\)"
        ),
    ):
        Manifest.scan("odd://images", progress=False)


def test_a_store_that_tells_no_size_at_all_is_refused_in_one_line(odd):
    odd.setattr(Odd, "informed", staticmethod(size_of_none))
    with pytest.raises(
        ManifestError,
        match=r"shard-000000.tar: its server does not say how large it is .*; download it",
    ) as caught:
        Manifest.open("odd://bucket/train", progress=False)
    assert "\n" not in str(caught.value)


class StatusError(Exception):
    """As of a library that is not installed."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class NoCredentialsError(Exception):
    pass


class ProfileNotFound(Exception):
    pass


class DefaultCredentialsError(Exception):
    pass


def name_not_known(code):
    from socket import gaierror

    return OSError("Cannot connect to host"), gaierror(code, "Name or service not known")


def caused(error, cause):
    error.__cause__ = cause
    return error


FOR_GOOD = {
    "401": (StatusError(401), 1, "refused (status 401); docs/object-stores.md has"),
    "403": (StatusError(403), 1, "refused (status 403)"),
    "403 hidden in a missing file": (
        caused(FileNotFoundError("x"), StatusError(403)),
        1,
        "refused (status 403)",
    ),
    "no permission": (PermissionError("Access Denied"), 1, "refused (Access Denied)"),
    "400": (StatusError(400), 4, "cannot be fetched (4 times: status 400); docs/obj"),
    "501": (StatusError(501), 1, "refused (status 501)"),
    "no credentials": (
        NoCredentialsError("Unable to locate credentials"),
        4,
        "cannot be fetched (4 times: Unable to locate credentials); docs/object-stores.md has",
    ),
    "Google's": (
        DefaultCredentialsError("not found"),
        4,
        "cannot be fetched (4 times: not found); docs/object-stores.md has",
    ),
    "no profile": (
        ProfileNotFound("The profile (x) could not be found"),
        4,
        "The profile (x) could not be found); docs/object-stores.md has",
    ),
    "no such name": (
        caused(*name_not_known(-2)),
        4,
        "cannot be fetched (4 times: Cannot connect to host); docs/object-stores.md has",
    ),
    "no listing": (
        NotImplementedError("ls"),
        1,
        "refused (ls)",
    ),
}


@pytest.mark.parametrize("what", FOR_GOOD)
def test_what_does_not_pass_is_said_at_once_in_one_line(odd, what):
    error, times, words = FOR_GOOD[what]
    odd.setattr(Odd, "error", error)
    with pytest.raises(ManifestError) as caught:
        Manifest.open("odd://bucket/train", progress=False)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert len(Odd.asked) == times


PASSING = {
    "500": StatusError(500),
    "503": StatusError(503),
    "throttled": StatusError(429),
    "timeout": TimeoutError("timed out"),
    "reset": ConnectionResetError("reset by peer"),
    "refused": ConnectionRefusedError("connection refused"),
    "reset, hidden in a missing file": caused(
        FileNotFoundError("x"), ConnectionResetError("reset by peer")
    ),
}


@pytest.mark.parametrize("what", PASSING)
def test_what_may_pass_is_asked_ten_times(odd, what):
    odd.setattr(Odd, "error", PASSING[what])
    with pytest.raises(ManifestError, match=r"cannot be fetched \(10 times: "):
        Manifest.open("odd://bucket/train", progress=False)
    assert len(Odd.asked) == 10


@pytest.mark.parametrize(
    "error",
    [caused(*name_not_known(-2)), DefaultCredentialsError("no token now"), StatusError(400)],
    ids=repr,
)
def test_a_store_that_has_answered_is_asked_ten_times_for_its_name_and_login(odd, error):
    """In mid-run these may pass."""
    assert listing.is_there("odd://bucket/train")
    odd.setattr(Odd, "error", error)
    Odd.asked.clear()
    with pytest.raises(OSError, match=r"cannot be fetched \(10 times: "):
        remote.read_object("odd://bucket/train/shard-000000.tar")
    assert len(Odd.asked) == 10


def test_what_is_never_sent_is_not_asked_ten_times_of_a_store_that_has_answered(odd):
    assert listing.is_there("odd://bucket/train")
    odd.setattr(Odd, "error", ProfileNotFound("The profile (x) could not be found"))
    Odd.asked.clear()
    with pytest.raises(OSError, match=r"cannot be fetched \(4 times: .*\); docs/object-stores.md"):
        remote.read_object("odd://bucket/train/shard-000000.tar")
    assert len(Odd.asked) == 4


def test_without_a_network_the_first_failure_is_told(odd, caplog):
    odd.setattr(Odd, "error", caused(*name_not_known(-3)))
    with pytest.raises(ManifestError, match=r"Cannot connect to host\); docs/object-stores.md"):
        Manifest.open("odd://bucket/train", progress=False)
    assert len(Odd.asked) == 4 and "attempt 1 of 4 failed (Cannot connect to host)" in caplog.text


def test_a_missing_file_is_missing_whatever_its_file_system_found_first(odd):
    odd.setattr(Odd, "error", caused(FileNotFoundError("x"), KeyError("x")))
    assert not listing.is_there("odd://bucket/train") and len(Odd.asked) == 1


def test_a_library_that_is_missing_is_named(odd):
    odd.setattr(Odd, "error", ImportError("no module named 'crt'"))
    with pytest.raises(ConfigError, match=r"odd://bucket/train.*no module named 'crt'; install it"):
        Manifest.open("odd://bucket/train", progress=False)


ABILITIES = {
    "all": {},
    "no ranges": {"ranges": False},
    "no ETag": {"etag": False},
    "no ETag and no time": {"etag": False, "times": False},
    "no ranges and no ETag": {"ranges": False, "etag": False},
    "files lie elsewhere": {"redirect": True},
    "no listing": {"listing": False},
    "no listing, and 403 of what is not there": {"listing": False, "missing": 403},
    "no listing, and a web page of what is not there": {"listing": False, "missing": 200},
}


@pytest.mark.parametrize("able", ABILITIES)
def test_shards_of_a_web_server(manifest, store, monkeypatch, able):
    monkeypatch.setattr(remote, "_CHUNK", 4096)
    with web_server(store.parent, **ABILITIES[able]) as (address, _):
        url = f"{address}/{store.name}"
        names = ["/shard-{000000..000003}.tar", "/shard-000000.tar"] + (
            [] if "no listing" in able else ["", "/*.tar"]
        )
        for name in names:
            far = Manifest.scan(url + name, workers=1, progress=False)
            assert (
                len(far) == (11 if name.endswith("0.tar") else 37)
                and not far.problems
                and far.root == url
            )
            assert far.name(3) == f"{url}/shard-000000.tar/000000003.jpg"
        for copy in copies.cache_folder().glob("copy-*"):
            copy.unlink()
        assert [far.read(number).tobytes() for number in range(11)] == [
            manifest.read(number).tobytes() for number in range(11)
        ]


def test_a_server_without_ranges_sends_a_shard_once(store, monkeypatch):
    monkeypatch.setattr(remote, "_CHUNK", 4096)
    with web_server(store.parent, ranges=False) as (address, asked):
        url = f"{address}/{store.name}/shard-000000.tar"
        version = listing.version_of(url)
        asked.clear()
        content = io.BytesIO()
        remote.download(url, version, content)
        assert content.getvalue() == (store / "shard-000000.tar").read_bytes()
        assert [method for method, _ in asked] == ["GET", "HEAD"]
        assert remote.read_object(url, 5000, 5010) == content.getvalue()[5000:5010]


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [True, False])
def test_parquet_and_class_folders_of_a_web_server(manifest, tmp_path, ranges):
    files = Path(__file__).with_name("files")
    shutil.copytree(files, tmp_path / "www" / "hf", ignore=shutil.ignore_patterns("*.py"))
    shutil.copytree(manifest.root, tmp_path / "www" / "images")
    with web_server(tmp_path / "www", ranges=ranges) as (address, _):
        near = Manifest.open(files, progress=False)
        for name, count in (
            ("", 9),
            ("/images-{00000..00001}-of-00002.parquet", 9),
            ("/images-00000-of-00002.parquet", 4),
        ):
            far = Manifest.open(f"{address}/hf{name}", progress=False)
            assert len(far) == count and [far.read(n).tobytes() for n in range(4)] == [
                near.read(n).tobytes() for n in range(4)
            ]
        (tmp_path / "www" / "images" / manifest.classes[0]).rename(
            tmp_path / "www" / "images" / "0 ä&é"
        )
        images = Manifest.open(f"{address}/images", progress=False)
        assert len(images) == 37 and images.classes == ["0 ä&é", *manifest.classes[1:]]
        assert images.read(5).tobytes() == manifest.read(5).tobytes()


def test_an_index_is_read_from_a_web_server(manifest, store):
    Manifest.scan(store, progress=False).save_index()
    with web_server(store.parent) as (address, asked):
        far = Manifest.open(f"{address}/{store.name}", progress=False)
        assert len(far) == 37 and not any(
            path.endswith(".tar") and method == "GET" for method, path in asked
        )
        assert far.read(0).tobytes() == manifest.read(0).tobytes()
        with pytest.raises(
            ManifestError,
            match=r"index.arrow: refused .*; it needs the permission to write there",
        ):
            far.save_index()


@pytest.mark.parametrize(
    ("lacking", "source", "words"),
    [
        (
            {"listing": False, "missing": 200},
            "",
            "lists no files there; name the shards by a pattern with braces",
        ),
        (
            {"listing": False},
            "/*.tar",
            "lists no files there; name the shards by a pattern with braces",
        ),
        (
            {"listing": False, "missing": 200},
            "/*.tar",
            "lists no files there; name the shards by a pattern with braces",
        ),
        (
            {"length": False, "ranges": False},
            "/shard-000000.tar",
            "does not say how large it is (no Content-Length)",
        ),
        (
            {"length": False, "ranges": False},
            "",
            "does not say how large it is (no Content-Length)",
        ),
        (
            {},
            "/shard-{000000..000009}.tar",
            "6 of the 10 names in it are missing: shard-000004.tar",
        ),
        ({}, "/shard-000009.tar", "its server has no such file"),
        ({"missing": 200}, "/shard-000009.tar", "its server has no such file"),
        ({"refuse": 401}, "/shard-000000.tar", "refused (401"),
        ({"refuse": 403}, "", "refused (403"),
        (
            {},
            "/shard-000000.tar?download=true",
            "after ? is no part of a name; give the URL without it",
        ),
    ],
)
def test_what_a_web_server_cannot_do_is_refused_in_one_line(
    store, monkeypatch, lacking, source, words
):
    monkeypatch.setattr(store_requests, "_ATTEMPTS", 1)
    with web_server(store.parent, **lacking) as (address, asked):
        with pytest.raises(ManifestError) as caught:
            Manifest.open(f"{address}/{store.name}{source}", progress=False)
        assert words in str(caught.value) and "\n" not in str(caught.value) and len(asked) < 25


def test_a_shard_that_changed_on_a_web_server_is_refused(store):
    for number, options in enumerate(({}, {"etag": False})):
        with web_server(store.parent, **options) as (address, _):
            far = Manifest.open(f"{address}/{store.name}/shard-000000.tar", progress=False)
            for copy in copies.cache_folder().glob("copy-*"):
                copy.unlink()
            content = bytearray((store / "shard-000000.tar").read_bytes())
            content[600] ^= 1
            (store / "shard-000000.tar").write_bytes(content)
            os.utime(store / "shard-000000.tar", (number, number))
            with pytest.raises(OSError, match="has changed since it was scanned"):
                far.read(0)


@pytest.mark.few
@pytest.mark.parametrize("scheme", ["local", "file", "memory"])
def test_other_schemes(manifest, store, scheme):
    files = fsspec.filesystem(scheme)
    root = f"/dali_pipes_stores{store}" if scheme == "memory" else str(store)
    if scheme == "memory":
        files.put(str(store), root, recursive=True)
    for name in ("", "/shard-000000.tar", "/*.tar"):
        far = Manifest.open(f"{scheme}://{root}{name}", progress=False)
        assert far.read(3).tobytes() == manifest.read(3).tobytes()
    options = {"transform": dp.EvalTransform(size=16, resize=16), "batch_size": 37}
    with dp.build_loader(far, dp.DaliConfig(device="cpu"), **options) as loader:
        assert len(next(iter(loader)).ids) == 37


def test_a_name_that_is_not_known(monkeypatch):
    """Of a real resolver, whether there is a network or not."""
    monkeypatch.setattr(store_requests, "_answering_stores", set())
    with pytest.raises(
        ManifestError,
        match=r"cannot be fetched \(4 times: .*nowhere.invalid",
    ):
        Manifest.open("http://nowhere.invalid/train", progress=False)


def test_a_forked_process_leaves_the_connections_of_its_parent_alone(store):
    """The parent's next request is answered at once, and not sent again after its deadline."""
    with web_server(store.parent) as (address, _):
        url = f"{address}/{store.name}/shard-000000.tar"
        content, before = remote.read_object(url), traffic.current().retries
        process = multiprocessing.get_context("fork").Process(
            target=remote.read_object, args=(url,)
        )
        process.start()
        process.join(60)
        assert (
            process.exitcode == 0
            and remote.read_object(url) == content
            and traffic.current().retries == before
        )


def test_a_login_by_the_configuration_of_fsspec(manifest, store, monkeypatch, tmp_path):
    with web_server(store.parent, login="Bearer x") as (address, _):
        url = f"{address}/{store.name}/shard-000000.tar"
        with pytest.raises(ManifestError, match=r"refused .*; docs/object-stores.md has"):
            Manifest.scan(url, progress=False)
        page = Path(__file__).parents[3] / "docs" / "object-stores.md"
        said = re.search(r"`(\{\"http.*?)`", page.read_text())[1]
        (tmp_path / "http.json").write_text(said.replace("…", "x"))
        configured = {}
        fsspec.config.set_conf_files(tmp_path, configured)  # as fsspec does when it is imported
        monkeypatch.setattr(fsspec.config, "conf", configured)
        assert Manifest.scan(url, progress=False).read(3).tobytes() == manifest.read(3).tobytes()
