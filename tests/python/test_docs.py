"""The documents exist that the sources refer to, links between them lead somewhere, and docs/python.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.markdown import check_runs, has_embedded_model, python_blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = (".py", ".pyx", ".pxd", ".pyi", ".h", ".cpp", ".inc", ".md", ".txt")

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not in a checkout")


def mentions() -> set[tuple[str, str]]:
    """Return (file, document) of every mention of a document, in the sources and in README.md."""
    files = [ROOT / "README.md"]
    for folder in ("src", "python", "tests"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in SOURCES and p.is_file()]
    return {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files
        for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text(encoding="utf-8"))
    }


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, outside code blocks."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_documents_that_are_mentioned_exist() -> None:
    found = mentions()
    assert {name for _, name in found} >= {"docs/cli.md", "docs/formats.md", "docs/model.md"}
    assert not {(path, name) for path, name in found if not (ROOT / name).is_file()}


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCS.glob("*.md"):
        for target, anchor in re.findall(r"\]\(([\w./-]+\.md)?(?:#([\w-]+))?\)", path.read_text(encoding="utf-8")):
            there = path.parent / target if target else path
            assert there.is_file(), f"{path.name}: {target}"
            assert not anchor or anchor in anchors(there), f"{path.name}: {target}#{anchor}"


def test_files_named_in_the_verification_table_exist() -> None:
    names = set(re.findall(r"`(tests/[\w./-]+\.(?:py|md|json))`", (DOCS / "model.md").read_text(encoding="utf-8")))
    assert names
    assert not {name for name in names if not (ROOT / name).is_file()}


def test_python_examples_compile() -> None:
    blocks = python_blocks(DOCS / "python.md")
    assert len(blocks) >= 8
    for number, code in enumerate(blocks, 1):
        compile(code, f"docs/python.md, block {number}", "exec")


@pytest.mark.skipif(not has_embedded_model(), reason="this installation has no embedded model")
def test_the_example_of_the_server_runs(tmp_path: Path) -> None:
    (code,) = python_blocks(DOCS / "server.md")
    check_runs(code, tmp_path)


@pytest.mark.skipif(not has_embedded_model(), reason="this installation has no embedded model")
def test_python_examples_run_in_order(tmp_path: Path) -> None:
    check_runs("\n".join(python_blocks(DOCS / "python.md")), tmp_path)
