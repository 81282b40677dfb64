"""benchmarks/cpu_compare.py: alternation, medians, ratios, floors and targets, with a stand-in for the peer."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "cpu_compare.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="not in a checkout")

PEER = """
import json, sys
option = lambda name, missing=None: sys.argv[sys.argv.index(name) + 1] if name in sys.argv else missing
with open(sys.argv[1], "a") as log:
    log.write(" ".join(sys.argv[2:]) + "\\n")
if "--fail" in sys.argv:
    sys.exit("no such luck")
rows = [{"n_prompt": int(n), "n_gen": 0, "samples_ts": [10.0, 30.0]} for n in option("-p").split(",") if n != "0"]
rows += [{"n_prompt": 0, "n_gen": int(n), "avg_ts": 4.0} for n in option("-n").split(",") if n != "0"]
print("a line before")
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cpu_compare", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cpu_compare"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def path(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", part="main", recipe="bf16")


@pytest.fixture
def peer(tmp_path: Path) -> tuple[str, Path]:
    """Command of the stand-in, and where it writes its arguments."""
    program, log = tmp_path / "peer.py", tmp_path / "peer.log"
    program.write_text(PEER)
    return shlex.join([sys.executable, str(program), str(log)]), log


def test_comparison(script: ModuleType, path: Path, peer: tuple[str, Path], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.json"
    arguments = ["-m", str(path), "-t", "1", "--tests", "pp8,tg2,tg2@30", "--rounds", "2", "--reps", "1"]
    code = script.main([*arguments, "--bandwidth", "20", "--peer", f"llama.cpp={peer[0]} -mmp 0", "--json", str(out)])
    assert code == 0
    report = json.loads(out.read_text())
    rows = {(r["test"], r["engine"]): r for r in report["results"]}
    assert set(rows) == {("pp8", "ds4"), ("tg2", "ds4"), ("tg2@30", "ds4"), ("pp8", "llama.cpp"), ("tg2", "llama.cpp")}
    theirs = rows["pp8", "llama.cpp"]
    assert theirs["samples"] == [10.0, 30.0] * 2 and theirs["tps"] == 20.0 and theirs["ratio"] == 1.0
    assert rows["pp8", "ds4"]["ratio"] == pytest.approx(rows["pp8", "ds4"]["tps"] / 20)
    assert len(rows["tg2", "ds4"]["samples"]) == 2
    assert report["bandwidth"] == 20e9
    floor = report["floors"][0]
    assert floor["test"] == "tg2" and floor["floor_tps"] == pytest.approx(20e9 / floor["bytes"])
    assert floor["share"] == pytest.approx(rows["tg2", "ds4"]["tps"] / floor["floor_tps"])
    assert [t["test"] for t in report["targets"]] == ["pp8", "tg2"]
    assert report["targets"][0]["wanted"] == pytest.approx(20 * 2 * 80 / 42)
    assert report["targets"][1]["wanted"] == pytest.approx(min(1.7 * 4, 0.85 * floor["floor_tps"]))
    calls = peer[1].read_text().splitlines()
    assert len(calls) == 2 and all(f"-m {path} -p 8 -n 2 -r 1 -t 1 -o json" in c and "-mmp 0" in c for c in calls)
    printed = capsys.readouterr()
    assert "| pp8 |" in printed.out and "ik_llama.cpp (estimate)" in printed.out and "floor" in printed.out
    order = [line.rpartition(": ")[2] for line in printed.err.splitlines() if line.startswith("round ")]
    assert order == ["ds4", "llama.cpp", "llama.cpp", "ds4"]


def test_a_failing_peer_does_not_stop_the_others(
    script: ModuleType, path: Path, peer: tuple[str, Path], capsys: Any
) -> None:
    arguments = ["-m", str(path), "-t", "1", "--tests", "pp8,tg2@9", "--rounds", "1", "--reps", "1", "--bandwidth", "0"]
    peers = ["--peer", f"bad={peer[0]} --fail", "--peer", "missing=/nowhere/llama-bench", "--peer", f"good={peer[0]}"]
    assert script.main([*arguments, *peers, "--peer-depths", "--json", "-"]) == 1
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert "no such luck" in report["errors"]["bad"][0] and "/nowhere/llama-bench" in report["errors"]["missing"][0]
    assert {r["engine"] for r in report["results"] if r["test"] == "tg2@9"} == {"ds4", "good"}
    assert report["bandwidth"] is None and report["floors"] == []
    assert any("-d 9 -o json" in c for c in peer[1].read_text().splitlines())


def test_curve(script: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(script, "CURVE", (64, 128, 256))
    arguments = ["-m", str(path), "-t", "1", "--tests", "pp8", "--rounds", "1", "--reps", "1", "--bandwidth", "0"]
    assert script.main([*arguments, "--curve", "128", "--json", "-"]) == 0
    curve = json.loads(capsys.readouterr().out)["curve"]
    assert set(curve["prefill_ms"]) == {"pp64", "pp128"} and set(curve["decode_ms"]) == {"tg32@64", "tg32@128"}
    assert curve["prefill_ratio"] == pytest.approx(curve["prefill_ms"]["pp128"] / curve["prefill_ms"]["pp64"])
    assert curve["decode_ratio"] == pytest.approx(curve["decode_ms"]["tg32@128"] / curve["decode_ms"]["tg32@64"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tests", "pp"], "is no test"),
        (["--rounds", "0"], "--rounds must be 1 or more"),
        (["--peer", "llama-bench"], "is not NAME=COMMAND"),
        (["--peer", "ds4=x"], "the same name"),
        (["--bandwidth", "nan"], "must be GB/s"),
        (["-m", "/nowhere/model.gguf"], "no such file"),
    ],
)
def test_wrong_arguments(script: ModuleType, path: Path, arguments: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(["-m", str(path), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_bandwidth_is_measured(script: ModuleType, tmp_path: Path) -> None:
    meter = script.Bandwidth(tmp_path, 2, 32)
    meter.measure()
    meter.measure()
    assert meter.best == max(r["bandwidth"] for r in meter.rounds) > 1e7
    assert meter.rounds[0]["threads"] == 2 and meter.rounds[0]["least"] <= meter.rounds[0]["median"]
