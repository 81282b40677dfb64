"""What the hub knows of a file, and its bytes from some position on.

The library of the hub finds addresses, tokens and the reasons of refusals. Its own download begins again after every
interruption of the program, so the bytes are taken by ranges here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from ds4._version import __version__
from ds4.errors import DS4Error

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class DownloadError(DS4Error):
    """A download failed; the text says what helps."""


class HubMissingError(DownloadError, ImportError):
    """The library of the hub is not installed."""


class ConnectionBrokenError(DownloadError):
    """The hub could not be reached or stopped talking: another attempt may help."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the hub.

    Attributes
    ----------
    repository, name : str
        Where it is.
    commit : str
        The revision that was looked up, which never changes.
    n_bytes : int
        Its size.
    etag : str
        What tells two contents apart.
    sha256 : str or None
        The checksum of the content, if the hub gives one.
    """

    repository: str
    name: str
    commit: str
    n_bytes: int
    etag: str
    sha256: str | None


def look_up(repository: str, name: str, *, revision: str = "main", token: str | None = None) -> RemoteFile:
    """Return what the hub says of a file, without reading it.

    Parameters
    ----------
    repository : str
        "owner/name".
    name : str
        The file in it.
    revision : str
        Branch, tag or commit.
    token : str or None
        An access token. Without one that of HF_TOKEN is used, else the one that the library of the hub has stored.

    Raises
    ------
    HubMissingError
        The extra ``download`` is not installed.
    DownloadError
        The hub does not have it, refuses it, or cannot be reached.
    """
    hub = _library()
    url = hub.hf_hub_url(repository, name, revision=revision, endpoint=_endpoint(hub))
    try:
        found = hub.get_hf_file_metadata(
            url, token=_token(token), library_name="ds4", library_version=__version__, retry_on_errors=False
        )
    except hub.errors.HfHubHTTPError as error:
        raise _refusal(hub, error, repository, name, revision, token) from None
    except (hub.errors.HTTPError, hub.errors.OfflineModeIsEnabled) as error:
        raise ConnectionBrokenError(_unreachable(hub, error)) from None
    if not found.size or not found.commit_hash or not found.etag:
        raise DownloadError(f"{repository}/{name}: the hub tells no size, revision or content tag of this file")
    return RemoteFile(
        repository, name, found.commit_hash, found.size, found.etag,
        found.etag if _SHA256.fullmatch(found.etag) else None,
    )  # fmt: skip


def read_from(remote: RemoteFile, begin: int, end: int, *, token: str | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file from `begin` on, up to `end` or, from a hub that knows no ranges, up to its last one.

    Raises
    ------
    ConnectionBrokenError
        The connection broke; what was yielded is good.
    DownloadError
        The hub refuses, or has another file now.
    """
    hub = _library()
    url = hub.hf_hub_url(remote.repository, remote.name, revision=remote.commit, endpoint=_endpoint(hub))
    headers = {
        **hub.utils.build_hf_headers(token=_token(token), library_name="ds4", library_version=__version__),
        "Range": f"bytes={begin}-{end - 1}",
        "Accept-Encoding": "identity",
    }
    left = end - begin
    try:
        with hub.utils.get_session().stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
        ) as response:
            if response.status_code in _PASSING:
                raise ConnectionBrokenError(f"the hub answered {response.status_code}")
            hub.utils.hf_raise_for_status(response)
            skipped = _bytes_to_skip(response, remote, begin)
            if response.status_code == 200:
                left = remote.n_bytes - begin
            for chunk in response.iter_bytes():
                piece = chunk[min(skipped, len(chunk)) :]
                skipped -= len(chunk) - len(piece)
                if len(piece) > left:
                    raise DownloadError(f"{remote.name}: the hub sends more bytes than the file has")
                left -= len(piece)
                if piece:
                    yield piece
    except hub.errors.HfHubHTTPError as error:
        raise _refusal(hub, error, remote.repository, remote.name, remote.commit, token) from None
    except hub.errors.HTTPError as error:
        raise ConnectionBrokenError(_unreachable(hub, error)) from None
    if left:
        raise ConnectionBrokenError(f"the connection ended {left} bytes early")


def _bytes_to_skip(response: object, remote: RemoteFile, begin: int) -> int:
    """Return how many bytes of an answer were asked for by nobody; checks that it is of the same file."""
    headers = response.headers  # type: ignore[attr-defined]
    if response.status_code != 206:  # type: ignore[attr-defined]
        size = headers.get("Content-Length")
        if size is not None and size != str(remote.n_bytes):
            raise DownloadError(f"{remote.name}: the hub sends {size} bytes where {remote.n_bytes} were announced")
        return begin
    found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", headers.get("Content-Range", ""))
    if found is None or int(found[1]) != begin or found[2] not in ("*", str(remote.n_bytes)):
        raise DownloadError(f"{remote.name}: the hub sends another range than it was asked for")
    return 0


def _library() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise HubMissingError("downloads need huggingface_hub: pip install 'ds4[download]'") from None
    return huggingface_hub


def _endpoint(hub: ModuleType) -> str:
    """Return the address of the hub."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or str(hub.constants.ENDPOINT)


def _token(token: str | None) -> str | bool:
    """Return the token to use; False when there is none."""
    if token is not None:
        return token
    return _library().get_token() or False


def _refusal(
    hub: ModuleType, error: Exception, repository: str, name: str, revision: str, token: str | None
) -> DownloadError:
    """Say why the hub refuses, and what helps."""
    status = error.response.status_code  # type: ignore[attr-defined]
    where = f"{repository}/{name}"
    have = "the token given was" if _token(token) else "no token was given, nor is one stored:"
    if isinstance(error, hub.errors.GatedRepoError):
        return DownloadError(
            f"{where}: the hub gives this file only to those who accepted its terms, and {have} not enough; accept "
            f"them at {_endpoint(hub)}/{repository} and give a token of that account (--token, or HF_TOKEN)"
        )
    if isinstance(error, hub.errors.RevisionNotFoundError):
        return DownloadError(f"{repository}: the hub has no revision {revision!r} of it")
    if isinstance(error, hub.errors.EntryNotFoundError):
        return DownloadError(f"{where}: the hub has no such file; ds4 download --list names the published ones")
    if status in (401, 403) or isinstance(error, hub.errors.RepositoryNotFoundError):
        said = "the token was not accepted" if _token(token) else "private ones need a token (--token, or HF_TOKEN)"
        return DownloadError(f"{where}: refused with {status}: there is no such repository, or {said}")
    if status == 404:
        return DownloadError(f"{where}: the hub has no such file (404)")
    if status in _PASSING:
        return ConnectionBrokenError(f"the hub answered {status}")
    return DownloadError(f"{where}: the hub answered {status}")


def _unreachable(hub: ModuleType, error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{_endpoint(hub)} cannot be reached: {text}"
