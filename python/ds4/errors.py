"""The exceptions of ds4, and the one table from the native library's status codes to them.

::

    Exception
    └── DS4Error                        everything below is caught by it
        ├── ModelFileError              (ValueError)    a file is damaged or is not GGUF; .path, .offset
        ├── UnsupportedModelError       (ValueError)    a sound file of something ds4 does not run; .path
        ├── WeightDataError             (ValueError)    weights or logits hold NaN or infinity
        ├── UnencodableValueError       (ValueError)    a value that a tensor type cannot hold; .row, .column
        ├── ContextFullError            (ValueError)    more positions than n_ctx
        ├── SnapshotError               (ValueError)    damaged, or of another model or setting
        ├── ClosedError                 (ValueError)    use of a closed model, session or file
        ├── StateError                  (RuntimeError)  not possible now: nothing evaluated yet, after fork, ...
        ├── SessionBusyError            (RuntimeError)  another call is running in the session
        ├── BackendUnavailableError     (RuntimeError)  this build or machine has no such backend
        ├── DeviceError                 (RuntimeError)  a device failed
        │   └── DeviceMemoryError       (MemoryError)   a device's memory is exhausted
        ├── InternalError               (RuntimeError)  a bug in ds4
        └── Cancelled                                   stopped by cancel(); the session is valid

Besides these, a bad argument is a plain `ValueError` or `TypeError`, a refused file operation is the `OSError` that
Python itself would raise (with errno and file name), and exhausted host memory is a `MemoryError`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = [
    "STATUS_CLASSES",
    "BackendUnavailableError",
    "Cancelled",
    "ClosedError",
    "ContextFullError",
    "DS4Error",
    "DeviceError",
    "DeviceMemoryError",
    "InternalError",
    "ModelFileError",
    "SessionBusyError",
    "SnapshotError",
    "StateError",
    "UnencodableValueError",
    "UnsupportedModelError",
    "WeightDataError",
    "error_of_status",
    "listed_faults",
]


class DS4Error(Exception):
    """Root of the exceptions that ds4 defines."""


class _FileError(DS4Error):
    """An error about one file.

    Attributes
    ----------
    path : str or None
        The file, when it is known.
    offset : int or None
        Where in the file, in bytes from its start, when that is known.
    """

    def __init__(self, message: str = "", *, path: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset

    def __str__(self) -> str:
        text = super().__str__()
        if self.path is not None and self.path not in text:
            text = f"{self.path}: {text}"
        return text


class ModelFileError(_FileError, ValueError):
    """A file is damaged, is cut short, or is not a GGUF file."""


class UnsupportedModelError(_FileError, ValueError):
    """A sound file of a model, shape or tensor type that ds4 does not run; the text lists every difference."""


class WeightDataError(DS4Error, ValueError):
    """Weights or logits hold NaN or infinity."""


class UnencodableValueError(DS4Error, ValueError):
    """A value is NaN, infinite, or too large for the tensor type it is to be stored in.

    Attributes
    ----------
    row, column : int
        Where it is.
    """

    def __init__(self, message: str = "", row: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.row = row
        self.column = column


class ContextFullError(DS4Error, ValueError):
    """The session has no room for that many positions."""


class SnapshotError(DS4Error, ValueError):
    """A snapshot is damaged, or was taken with another model or other settings."""


class ClosedError(DS4Error, ValueError):
    """A model, session or file was used after it was closed."""


class StateError(DS4Error, RuntimeError):
    """The object cannot do this now, for example because nothing was evaluated yet or the process was forked."""


class SessionBusyError(DS4Error, RuntimeError):
    """Another call is running in this session; a session serves one caller at a time."""


class BackendUnavailableError(DS4Error, RuntimeError):
    """This build or this machine has no such backend; the text says why."""


class DeviceError(DS4Error, RuntimeError):
    """A device failed."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a device is exhausted."""


class InternalError(DS4Error, RuntimeError):
    """A bug in ds4; please report the text."""


class Cancelled(DS4Error):  # noqa: N818 - the name of an outcome, not of a fault
    """A call was stopped by `cancel()`. The session stands at its last whole chunk and may be used."""


STATUS_CLASSES: dict[int, type[Exception]] = {
    1: ValueError,  # DS4_E_ARGUMENT
    2: OSError,  # DS4_E_IO
    3: ModelFileError,  # DS4_E_FORMAT
    4: UnsupportedModelError,  # DS4_E_UNSUPPORTED
    5: MemoryError,  # DS4_E_MEMORY
    6: StateError,  # DS4_E_STATE
    7: SessionBusyError,  # DS4_E_BUSY
    8: Cancelled,  # DS4_E_CANCELLED
    9: ContextFullError,  # DS4_E_CONTEXT
    10: SnapshotError,  # DS4_E_SNAPSHOT
    11: BackendUnavailableError,  # DS4_E_UNAVAILABLE
    12: DeviceError,  # DS4_E_DEVICE
    13: WeightDataError,  # DS4_E_DATA
    14: InternalError,  # DS4_E_INTERNAL
    15: DeviceMemoryError,  # DS4_E_DEVICE_MEMORY
}
"""Class of each status code of the C interface (status.h). 0 is success and has none."""


def listed_faults(faults: Sequence[str], most: int = 30) -> str:
    """Return faults as lines of a message, each on its own: the first ones, and how many more there are."""
    more = [f"and {len(faults) - most} more"] if len(faults) > most else []
    return "".join(f"\n  {line}" for line in [*faults[:most], *more])


def error_of_status(
    status: int, message: str, *, os_errno: int = 0, offset: int | None = None, path: str | None = None
) -> Exception:
    """Make the exception for a status code of the native library.

    Parameters
    ----------
    status : int
        A `ds4_status` other than 0. A code that this table lacks gives `InternalError`.
    message : str
        Text of the native error record.
    os_errno : int
        Error number of the operating system, or 0; only for file operations.
    offset : int, optional
        Byte offset in the file.
    path : str, optional
        The file that the call was about.

    Returns
    -------
    Exception
        To be raised by the caller.
    """
    kind = STATUS_CLASSES.get(status)
    if kind is None:
        return InternalError(f"unknown status {status} of the native library: {message}")
    if issubclass(kind, _FileError):
        return kind(message, path=path, offset=offset)
    if kind is OSError and os_errno:
        # Two or more arguments let OSError choose its subclass (FileNotFoundError, PermissionError, ...).
        return OSError(os_errno, os.strerror(os_errno), path) if path is not None else OSError(os_errno, message)
    return kind(message)
