"""Streaming of experts as the program offers it: the same answers, a plan before the work, and refusals that help."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ds4 as package
import pytest

ASK = ("-p", "What is the capital of France?", "-n", "8", "--nothink")
SMALL = ("-c", "256", "-t", "1")


def answer(ds4: Any, *args: Any) -> tuple[str, str]:
    done = ds4(*ASK, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_answer_does_not_depend_on_it(ds4: Any) -> None:
    plain, _ = answer(ds4)
    for args in (["--expert-cache", "120KiB"], ["--expert-cache", "auto"], ["--ssd-streaming"]):
        shown, log = answer(ds4, *args)
        assert shown == plain
        assert re.search(r"streaming: 5\.5 MiB of weights in memory, .* for (1|48) of 48 experts \((2|100) %", log), log
    assert "streaming" not in answer(ds4, "--expert-cache", "off")[1]


@pytest.fixture(scope="module")
def all_of_it() -> int:
    """Bytes of the tiny model and a small session."""
    with package.Model.open_embedded() as model:
        plan = model.memory_plan(256, threads=1)
    return plan.weights_bytes + plan.total_session_bytes


def test_a_size_beyond_the_memory_is_capped_with_a_warning(ds4: Any, all_of_it: int) -> None:
    """L086, too large."""
    _, log = answer(ds4, *SMALL, "--expert-cache", "5MiB", "--simulate-memory", all_of_it)
    found = re.search(r"warning: an expert cache of 5\.0 MiB does not fit into the .*; ([\d.]+) MiB are used", log)
    assert found is not None, log
    assert float(found[1]) < 5


def test_a_size_below_the_least_is_refused_with_the_number(ds4: Any) -> None:
    """L086, too small: one expert is enough for everything, less is nothing."""
    for size in ("0", "100000"):
        done = ds4(*ASK, "--expert-cache", size)
        assert done.returncode == 1
        assert "the smallest possible one is 122880 bytes (120.0 KiB): one expert" in done.stderr
    assert answer(ds4, "--expert-cache", "122880")[0] == answer(ds4)[0]


def test_what_is_larger_than_the_memory_names_the_option(ds4: Any, all_of_it: int) -> None:
    refused = ds4(*ASK, *SMALL, "--simulate-memory", all_of_it - 1)
    assert refused.returncode == 1
    assert "not enough memory" in refused.stderr
    offer = r"--expert-cache auto runs it with [\d.]+ [KM]iB for routed experts"
    assert re.search(offer, refused.stderr), refused.stderr
    shown, log = answer(ds4, *SMALL, "--simulate-memory", all_of_it - 1, "--expert-cache", "auto")
    assert shown == answer(ds4)[0]
    assert "of 48 experts" in log
    nothing = ds4(*ASK, *SMALL, "--simulate-memory", "10MiB", "--expert-cache", "auto")
    assert nothing.returncode == 1
    assert "cache of at least 122880 bytes" in nothing.stderr
    assert "smaller context" in nothing.stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--expert-cache", "much"], "is not a size"),
        (["--ssd-streaming", "--expert-cache", "off"], "contradict"),
    ],
)
def test_wrong_use(ds4: Any, args: list[str], text: str) -> None:
    done = ds4(*ASK, *args)
    assert done.returncode == 2
    assert text in done.stderr


def test_other_programs(ds4: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("in the street and in the house, " * 20)
    results = []
    for args in ([], ["--expert-cache", "500KiB"]):
        out = tmp_path / f"{len(args)}.json"
        score = ds4("score", "text", text, "-c", 256, "--json", out, *args)
        assert score.returncode == 0, score.stderr
        results.append(json.loads(out.read_text()))
        bench = ds4("bench", "--tests", "pp16,tg2", "--reps", 1, *args)
        assert bench.returncode == 0, bench.stderr
        imatrix = ds4("imatrix", "collect", text, "-o", tmp_path / f"{len(args)}.gguf", "-c", 64, *args)
        assert imatrix.returncode == 0, imatrix.stderr
        for done in (score, bench, imatrix):
            assert ("streaming: " in done.stderr) == bool(args)
    assert results[0] == results[1]
    assert (tmp_path / "0.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()


def test_two_models_at_once(ds4: Any, tmp_path: Path, all_of_it: int) -> None:
    """They share the memory that there is; what both take together fits."""
    text = tmp_path / "text.txt"
    text.write_text("in the street and in the house, " * 20)
    path = package.Model.embedded_path()
    args = ("score", "against", "--parent", path, "-m", path, text, "-c", 256, "-t", 1)
    whole = ds4(*args)
    assert whole.returncode == 0, whole.stderr
    room = 2 * all_of_it - (2 << 20)
    done = ds4(*args, "--ssd-streaming", "--simulate-memory", room)
    assert done.returncode == 0, done.stderr
    assert done.stdout == whole.stdout
    plans = re.findall(
        r"streaming: .* for (\d+) of 48 experts .* context of 256: ([\d.]+) MiB of ([\d.]+) MiB", done.stderr
    )
    assert len(plans) == 2, done.stderr
    assert all(0 < int(slots) < 48 for slots, _, _ in plans)
    assert sum(float(taken) for _, taken, _ in plans) <= room / (1 << 20)
    assert [float(share) for _, _, share in plans] == pytest.approx([room / (2 << 20)] * 2, abs=0.1)


@pytest.fixture
def heat_file(environment: dict[str, str]) -> Path:
    """The file of selections of the tiny model, in an empty cache directory."""
    environment["XDG_CACHE_HOME"] = str(Path(environment["HOME"]) / "cache")
    with package.Model.open_embedded() as model:
        return Path(environment["XDG_CACHE_HOME"]) / "ds4" / "experts" / f"{model.fingerprint.hex()}.heat"


def experts_of(ds4: Any, *args: Any) -> tuple[dict[str, Any], str]:
    done = ds4(*ASK, "--json", "--expert-cache", "auto", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["experts"], done.stderr


def test_what_was_used_is_there_the_next_time(ds4: Any, heat_file: Path) -> None:
    cold, _ = experts_of(ds4, "--cold")
    assert not heat_file.exists()
    assert cold["misses"] > 0
    first, log = experts_of(ds4)
    assert first["asked"] == cold["asked"]
    assert first["file_bytes"] == cold["file_bytes"] >= first["read_bytes"] > 0  # some were read ahead
    assert first["read_gb_per_s"] == pytest.approx(first["file_bytes"] / first["reading_ms"] / 1e6, rel=0.01, abs=1e-3)
    assert heat_file.stat().st_mode & 0o777 == 0o600
    line = r"experts: [\d.]+ % of \d+ in memory, \d+ read \([\d.]+ MB at [\d.]+ GB/s\), [\d.]+ s waited"
    assert re.search(line, log), log
    second, _ = experts_of(ds4)
    assert (second["hits"], second["misses"], second["read_bytes"]) == (second["asked"], 0, 0)
    assert (second["file_bytes"], second["read_gb_per_s"]) == (0, None)
    assert experts_of(ds4, "--cold")[0]["misses"] == cold["misses"]


def test_a_damaged_file_is_ignored_with_a_notice(ds4: Any, heat_file: Path) -> None:
    experts_of(ds4)
    whole = heat_file.read_bytes()
    heat_file.write_bytes(whole[:-1])
    found, log = experts_of(ds4)
    assert found["misses"] > 0
    assert f"{heat_file}: damaged" in log
    assert len(heat_file.read_bytes()) == len(whole)  # written anew


def test_a_directory_that_cannot_be_written_is_no_failure(ds4: Any, heat_file: Path) -> None:
    cache = heat_file.parents[2]
    cache.write_text("a file")
    _, log = experts_of(ds4)
    assert "not remembered" in log


def test_cold_needs_a_cache(ds4: Any) -> None:
    done = ds4(*ASK, "--cold")
    assert done.returncode == 2
    assert "--cold has no effect" in done.stderr


@pytest.fixture
def depth_file(environment: dict[str, str], heat_file: Path) -> Path:
    """The file of the depths of disks, in the same directory."""
    return heat_file.parents[1] / "disks.json"


def depth_notes(log: str) -> list[str]:
    return [line for line in log.splitlines() if "reads at a time" in line]


def test_the_disk_is_measured_once(ds4: Any, depth_file: Path) -> None:
    first = depth_notes(experts_of(ds4, "--cold")[1])
    assert len(first) == 1
    assert re.search(r"gives [\d.]+ GB/s with \d+ reads at a time \(measured once, in \d\.\d s\)", first[0])
    assert depth_file.stat().st_mode & 0o777 == 0o600
    known = depth_file.read_bytes()
    assert depth_notes(experts_of(ds4, "--cold")[1]) == []
    assert depth_file.read_bytes() == known


def test_an_explicit_depth_measures_nothing(ds4: Any, depth_file: Path) -> None:
    assert depth_notes(experts_of(ds4, "--cold", "--read-depth", 3)[1]) == []
    assert not depth_file.exists()
    done = ds4(*ASK, "--read-depth", 3)
    assert done.returncode == 2
    assert "--read-depth has no effect" in done.stderr
    assert ds4(*ASK, "--ssd-streaming", "--read-depth", 0).returncode == 2


def test_a_damaged_file_of_depths_is_told_and_written_anew(ds4: Any, depth_file: Path) -> None:
    depth_file.parent.mkdir(parents=True)
    depth_file.write_text("{}")
    _, log = experts_of(ds4, "--cold")
    assert f"{depth_file}: damaged" in log
    assert len(depth_notes(log)) == 1
    assert "damaged" not in experts_of(ds4, "--cold")[1]


def test_a_depth_that_cannot_be_remembered_is_no_failure(ds4: Any, depth_file: Path) -> None:
    depth_file.parents[1].write_text("a file")
    _, log = experts_of(ds4, "--cold")
    assert len(depth_notes(log)) == 1
    assert "how the disk is best read is not remembered" in log


NO_DIRECT_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

#define REFUSE(name)                                                                    \\
    int name(const char *path, int flags, ...) {                                        \\
        va_list more;                                                                   \\
        va_start(more, flags);                                                          \\
        const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;         \\
        va_end(more);                                                                   \\
        if (flags & O_DIRECT) return errno = EINVAL, -1;                                \\
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \\
    }
REFUSE(open)
REFUSE(open64)
"""


@pytest.fixture
def no_direct_reads(environment: dict[str, str], tmp_path: Path) -> None:
    """File systems as some tmpfs, overlays and network mounts are: they refuse direct reads."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux" or "LD_PRELOAD" in os.environ:
        pytest.skip("needs Linux, a C compiler, and no preloaded library")
    source, library = tmp_path / "open.c", tmp_path / "open.so"
    source.write_text(NO_DIRECT_READS)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    environment["LD_PRELOAD"] = str(library)


@pytest.mark.usefixtures("no_direct_reads")
def test_no_direct_reads_one_line_of_notice(ds4: Any, tmp_path: Path) -> None:
    """Files are read through the page cache then, in every program, with the same results."""
    plain, quiet = answer(ds4)
    assert "page cache" not in quiet
    shown, log = answer(ds4, "--expert-cache", "1MiB")
    assert shown == plain
    text = tmp_path / "text.txt"
    text.write_text("in the street and in the house, " * 20)
    logs = [log]
    for args in (["score", "text", text, "-c", 64], ["imatrix", "collect", text, "-o", tmp_path / "x.gguf", "-c", 64]):
        done = ds4(*args, "--expert-cache", "1MiB")
        assert done.returncode == 0, done.stderr
        logs.append(done.stderr)
    for log in logs:
        lines = [line for line in log.splitlines() if "page cache" in line]
        assert len(lines) == 1, log
        assert f'"{package.Model.embedded_path()}" is read through the page cache' in lines[0]
        assert "gives no direct reads (Invalid argument)" in lines[0]
