import numpy as np
from numpy.typing import NDArray

def dequantize(kind: int, data: NDArray[np.uint8], out: NDArray[np.float32], threads: int) -> None: ...
def quantize(
    kind: int,
    values: NDArray[np.float32],
    importance: NDArray[np.float32] | None,
    n_bytes: int,
    threads: int,
    first_row: int,
    allow_nonfinite: bool,
) -> bytes: ...
def unweighted_blocks(importance: NDArray[np.float32]) -> int: ...
def add_column_squares(values: NDArray[np.float32], sums: NDArray[np.float32]) -> None: ...
