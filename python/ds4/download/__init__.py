"""Downloads of model files from a hub: looked up, resumed, checked. Needs the extra ``download``."""

from __future__ import annotations

from .hub import DownloadError, HubMissingError, RemoteFile, look_up, read_from
from .transfer import HEAD_PIECE, Transfer

__all__ = ["HEAD_PIECE", "DownloadError", "HubMissingError", "RemoteFile", "Transfer", "look_up", "read_from"]
