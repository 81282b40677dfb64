"""The exception tree and the table from status codes to classes."""

from __future__ import annotations

import errno
import pickle
import re
from pathlib import Path

import ds4
import pytest
from ds4 import errors
from ds4._native import _core

HEADER = Path(__file__).parents[2] / "src" / "ds4core" / "include" / "ds4" / "status.h"
STATUSES = {int(value): name for name, value in re.findall(r"(DS4_E_\w+) = (\d+)", HEADER.read_text())}


def test_every_status_of_the_header_has_a_class() -> None:
    """The table, the header and the library name the same codes."""
    assert set(errors.STATUS_CLASSES) == set(STATUSES)
    for status, name in STATUSES.items():
        assert _core.status_name(status) == name


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_an_error_is_of_its_class_and_tells_the_message(status: int) -> None:
    error = errors.error_of_status(status, "the thing is 3, not 4")
    assert type(error) is errors.STATUS_CLASSES[status]
    assert "the thing is 3, not 4" in str(error)


def test_an_unknown_status_is_an_internal_error() -> None:
    error = errors.error_of_status(99, "hm")
    assert isinstance(error, ds4.InternalError)
    assert "99" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOENT, FileNotFoundError), (errno.EACCES, PermissionError), (errno.EISDIR, IsADirectoryError)],
)
def test_a_refused_file_operation_is_what_python_would_raise(code: int, kind: type[OSError]) -> None:
    error = errors.error_of_status(2, 'cannot open "x.gguf": ...', os_errno=code, path="x.gguf")
    assert type(error) is kind
    assert (error.errno, error.filename) == (code, "x.gguf")


def test_a_file_error_carries_path_and_offset() -> None:
    error = errors.error_of_status(3, "tensor data ends early", offset=4096, path="x.gguf")
    assert isinstance(error, ds4.ModelFileError)
    assert (error.path, error.offset) == ("x.gguf", 4096)
    assert str(error) == "x.gguf: tensor data ends early"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.path, again.offset) == (type(error), str(error), "x.gguf", 4096)


def test_an_error_about_a_value_carries_its_place() -> None:
    error = pickle.loads(pickle.dumps(ds4.UnencodableValueError("row 3, column 7: nan", 3, 7)))
    assert (str(error), error.row, error.column) == ("row 3, column 7: nan", 3, 7)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (ds4.ModelFileError, ValueError),
        (ds4.UnsupportedModelError, ValueError),
        (ds4.WeightDataError, ValueError),
        (ds4.UnencodableValueError, ValueError),
        (ds4.ContextFullError, ValueError),
        (ds4.SnapshotError, ValueError),
        (ds4.ClosedError, ValueError),
        (ds4.StateError, RuntimeError),
        (ds4.SessionBusyError, RuntimeError),
        (ds4.BackendUnavailableError, RuntimeError),
        (ds4.DeviceError, RuntimeError),
        (ds4.DeviceMemoryError, MemoryError),
        (ds4.InternalError, RuntimeError),
        (ds4.Cancelled, Exception),
    ],
)
def test_an_exception_is_also_the_builtin_that_people_catch(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, ds4.DS4Error)
    assert issubclass(kind, builtin)
    assert kind.__name__ in (errors.__doc__ or ""), "the tree at the top of errors.py is complete"
