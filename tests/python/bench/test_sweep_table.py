"""The CSV of a sweep: what is written, what is read, what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from ds4.bench import Frontier, Sweep, read_sweep
from ds4.bench import sweep_table as table
from ds4.bench.frontier import Run

NINE = (
    "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,gen_first_ms,gen_steady_tokens,gen_steady_tps,"
    "kvcache_bytes"
)
RUNS = (Run(2.0, (0.5, 0.1), 1.5, 1.0), Run(1.0, (0.3, 0.2), 1.7, 1.0), Run(4.0, (0.1, 0.4), 1.6, 1.0))
ROW = Frontier(100, 40, 2, 7, RUNS, 2595.6, None)


def read(tmp_path: Path, text: str | bytes) -> Sweep:
    path = tmp_path / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_sweep(path)


def test_the_first_nine_columns_are_those_that_others_read() -> None:
    assert table.header().startswith(NINE + ",repeats,")
    cells = dict(zip(table.header().split(","), table.row(ROW).split(","), strict=True))
    assert list(cells.values())[:9] == ["100", "40", "20.00", "2", "4.00", "300.00", "1", "5.00", "7"]
    assert cells["repeats"] == "3" and cells["prefill_tps_min"] == "10.00" and cells["prefill_tps_max"] == "40.00"
    assert cells["clock_mhz"] == "2596" and cells["temperature_c"] == "", "what the machine does not tell stays empty"
    assert cells["prefill_runs"] == "20.0000 40.0000 10.0000" and cells["prefill_cpus"] == "1.60"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    lines = [table.comment("model", "a\nb: c"), table.header(), table.row(ROW), table.comment("ended", "complete")]
    sweep = read(tmp_path, "\n".join(lines) + "\n")
    assert sweep.facts == {"model": "a b: c", "ended": "complete"} and sweep.is_whole
    assert sweep.name == "table.csv"
    (row,) = sweep.rows
    assert row.prefill == (20, 40, 10) and row.prefill_tps == 20 and row.gen_tps == 4 and len(row.gen) == 3
    plain = [line for line in (tmp_path / "table.csv").read_text().splitlines() if not line.startswith("#")]
    assert next(iter(csv.DictReader(plain)))["gen_tps"] == "4.00"


def test_tables_of_other_programs(tmp_path: Path) -> None:
    """Six columns, nine columns, other ends of lines, a mark at the begin."""
    six = "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes\n"
    sweep = read(tmp_path, "\ufeff" + six.replace("\n", "\r\n") + "2048,2048,411.10,128,23.20,99\r\n\r\n")
    assert sweep.rows[0].prefill == (411.1,) and sweep.rows[0].gen == (23.2,) and sweep.is_whole
    sweep = read(tmp_path, NINE + "\n2048,2048,1.5,0,0.00,0.00,0,0.00,9\n4096,2048,1.4,0,0,0,0,0,9")
    assert [r.ctx_tokens for r in sweep.rows] == [2048, 4096] and sweep.rows[1].gen == (0,)


@pytest.mark.parametrize("end", ["", "# ended: interrupted after 1 of 2 frontiers\n", "# ended: failed\n"])
def test_a_table_that_was_cut_off_is_not_whole(tmp_path: Path, end: str) -> None:
    text = "# model: x\n" + table.header() + "\n" + table.row(ROW) + "\n" + end
    assert not read(tmp_path, text).is_whole


HEAD = "ctx_tokens,prefill_tps,gen_tps\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no rows"),
        ("# only: comments\n\n", "there are no rows"),
        (HEAD, "no frontier was measured"),
        ("1,2,3\n4,5,6\n", "no table of ds4-bench, its first row lacks ctx_tokens, prefill_tps, gen_tps"),
        ("ctx_tokens,gen_tps\n1,2\n", "lacks prefill_tps;"),
        ('{"format": "ds4-bench"}\n', "no table of ds4-bench"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8"),
        (b"GGUF\x03\0\0\0\0\0", "no table of ds4-bench"),
        ("ctx_tokens,prefill_tps,gen_tps,gen_tps\n1,2,3,4\n", "names a column twice"),
        (HEAD + "1,2\n", "line 2 has 2 cells, the first row names 3"),
        (HEAD + "1,2,3,4\n", "line 2 has 4 cells"),
        (HEAD + "# x\n1,fast,3\n", "line 3: prefill_tps is 'fast'"),
        (HEAD + "1,nan,3\n", "prefill_tps is 'nan'"),
        (HEAD + "1,inf,3\n", "prefill_tps is 'inf'"),
        (HEAD + "1,2,-3\n", "gen_tps is '-3'"),
        (HEAD + "1,0,3\n", "prefill_tps is 0"),
        (HEAD + "0,2,3\n", "not a length"),
        (HEAD + "1.5,2,3\n", "not a length"),
        (HEAD + "1e99,2,3\n", "not a length"),
        (HEAD + "2,2,3\n2,2,3\n", "line 3: ctx_tokens does not rise"),
        (HEAD + "2,2,3\n1,2,3\n", "does not rise"),
        ("ctx_tokens,prefill_tps,gen_tps,prefill_runs,gen_runs\n1,2,3,2 2,3\n", "prefill_runs has 2 numbers"),
        ("ctx_tokens,prefill_tps,gen_tps,prefill_runs,gen_runs\n1,2,3,2 0,3 3\n", "speed 0"),
        ("ctx_tokens,prefill_tps,gen_tps,prefill_runs,gen_runs\n1,2,3,2 2,3 0\n", "speed 0"),
        ("ctx_tokens,prefill_tps,gen_tps,prefill_runs,gen_runs\n1,2,3,2 x,3 3\n", "prefill_runs is 'x'"),
        (HEAD + '1,"2,3\n', "cells"),
        (HEAD + "1,2,3\0\n", "gen_tps is"),
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=r"table\.csv: ") as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    with open(path, "wb") as f:
        f.truncate(1 << 40)
    with pytest.raises(ValueError, match="larger than 16 MiB"):
        read_sweep(path)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_sweep(tmp_path / "none.csv")
