"""Refuses addresses that name no images, such as commands and misspelt URLs."""

import os
import re
from importlib.util import find_spec

from dali_pipes.data.shards.addresses import is_remote, is_web
from dali_pipes.errors import ManifestError

_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "http", "https")


def refuse_address(text: str) -> None:
    scheme, _, rest = text.partition(":")
    # WebDataset's URLs may be commands
    if scheme == "pipe":
        do = "give the URL itself (s3://…), or copy the shards to a disk and give their folder"
        why = "shards from a command (pipe:) are not read, since they have no size"
        raise ManifestError(f"{text}: {why}; {do}")

    # fsspec's chains of URLs
    if "::" in text and is_remote(text):
        do = "open each, and join them with Manifest.concat"
        raise ManifestError(f"{text}: several URLs in one are not read; {do}")
    # a file may have a name such as s3:notes
    if scheme.lower() not in _SCHEMES or os.path.lexists(text):
        return
    if is_web(text) and (asks := re.search(r"\?[^/*{}]*=[^/*{}]*\Z", text)):
        why = "what a URL asks for at its end is no part of a name, and a signature in it ends"
        raise ManifestError(f"{text}: {why}; give the URL without {asks[0][:40]}")

    right = f"{scheme.lower()}://{rest.lstrip('/')}"
    if not rest.startswith("//") or scheme != scheme.lower():
        why = f"is not a URL, which begins with {scheme.lower()}://"
        raise ManifestError(f"{text}: {why}; write {right}")
    if scheme == "hf" and not find_spec("huggingface_hub"):
        download = "download it (hf download NAME --repo-type dataset) and give the local folder"
        do = f"{download}, or pip install huggingface_hub"
        raise ManifestError(f"{text}: is on Hugging Face's hub; {do}")
