"""The text made by rules, and what is told about the machine."""

from __future__ import annotations

import itertools
from pathlib import Path

import ds4
import pytest
from ds4.bench import build_facts, machine, machine_facts, peak_rss, text_sha256, text_tokens
from ds4.bench.text import paragraphs

TEXT_SHA256 = "9d5f2bf2a6147b6a7fa7dbcc6558cba16957718e6a6cf5a66dad0b5077ba0e95"


class Letters:
    """An encoder whose tokens are characters."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]


def test_the_text_is_always_the_same() -> None:
    """A change of the rules makes old measurements incomparable: their tables carry this number."""
    assert text_sha256() == TEXT_SHA256
    assert text_sha256(2) != text_sha256(1)
    assert list(itertools.islice(paragraphs(5), 40)) == list(itertools.islice(paragraphs(5), 40))


def test_a_longer_text_begins_with_a_shorter_one() -> None:
    long = text_tokens(Letters(), 5000)
    assert len(long) == 5000 and text_tokens(Letters(), 1234) == long[:1234] and text_tokens(Letters(), 0) == []
    with pytest.raises(ValueError, match="0 or more"):
        text_tokens(Letters(), -1)


def test_the_text_is_varied() -> None:
    found = list(itertools.islice(paragraphs(), 400))
    assert len(set(found)) > 390
    for mark in ("def ", '" said ', "Section ", " = ", "name,place"):
        assert any(mark in p for p in found), mark
    assert all(p.strip() and p.isascii() for p in found)


def test_facts_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = machine_facts()
    assert facts["machine"] and facts["processors"] >= 1 and facts["load"] >= 0
    assert facts["memory_bytes"] > 1 << 20 and peak_rss() > 1 << 20
    zone, cpu = tmp_path / "thermal_zone0", tmp_path / "cpu0" / "cpufreq"
    zone.mkdir()
    cpu.mkdir(parents=True)
    (zone / "temp").write_text("63500\n")
    (cpu / "scaling_cur_freq").write_text("4100000\n")
    (cpu / "scaling_governor").write_text("performance\n")
    (tmp_path / "thermal_zone1").mkdir()
    (tmp_path / "thermal_zone1" / "temp").write_text("broken")
    monkeypatch.setattr(machine, "_ZONES", tmp_path)
    monkeypatch.setattr(machine, "_CPU", tmp_path)
    facts = machine_facts()
    assert facts["temperature_c"] == 63.5 and facts["clock_mhz"] == 4100 and facts["clock_rule"] == "performance"
    monkeypatch.setattr(machine, "_ZONES", tmp_path / "none")
    assert "temperature_c" not in machine_facts() and machine.temperature() is None


def test_facts_of_the_build(tmp_path: Path) -> None:
    facts = build_facts()
    assert facts["version"] == ds4.__version__ and facts["cpu_isa"] == ds4.cpu_isa()
    assert machine._commit(tmp_path) is None, "no checkout, no commit"
