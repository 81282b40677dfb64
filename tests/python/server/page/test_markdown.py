"""The page's Markdown, in a browser: what it makes of texts, piece by piece, and that no text takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.scripted import turns

RENDER = """async (texts) => {
  const { MarkdownView } = await import("/page/markdown.js");
  const box = document.createElement("div");
  const view = new MarkdownView(box);
  for (const text of texts) view.update(text);
  return box.innerHTML;
}"""

CASES = {
    "paragraphs": ("a\nb\n\nc", "<p>a<br>b</p><p>c</p>"),
    "headings": ("# A #\n## B\ntext\n#no", "<h1>A</h1><h2>B</h2><p>text<br>#no</p>"),
    "emphasis": (
        "**a** __b__ *c* _d_ ~~e~~ ***f*** *g **h** i*",
        "<p><strong>a</strong> <strong>b</strong> <em>c</em> <em>d</em> <del>e</del> "
        "<strong><em>f</em></strong> <em>g <strong>h</strong> i</em></p>",
    ),
    "no emphasis": ("2 * 3 * 4, snake_case_name, **open", "<p>2 * 3 * 4, snake_case_name, **open</p>"),
    "escapes": (r"\*a\* \` \<b\> \z", "<p>*a* ` &lt;b&gt; \\z</p>"),
    "code in text": ("`a` ``b`c`` `` ` `` `open", "<p><code>a</code> <code>b`c</code> <code>`</code> `open</p>"),
    "code block": (
        "```py x\n<b> *x*\n\n  y\n```\nafter",
        '<div class="code"><div><span>py</span><button type="button" data-copy="code">Copy</button></div>'
        "<pre><code>&lt;b&gt; *x*\n\n  y</code></pre></div><p>after</p>",
    ),
    "open code block": (
        "~~~\na",
        '<div class="code"><div><span>text</span><button type="button" data-copy="code">Copy</button></div>'
        "<pre><code>a</code></pre></div>",
    ),
    "list": ("- a\n- b\n  - c\n\ntext", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>text</p>"),
    "numbered": ("3. a\n4. b\n\n5. c", '<ol start="3"><li><p>a</p></li><li><p>b</p></li><li><p>c</p></li></ol>'),
    "kinds apart": ("- a\n1. b", '<ul><li>a</li></ul><ol start="1"><li>b</li></ol>'),
    "code in a list": (
        "1. a\n   ```\n   x\n\n   - y\n   ```\n2. b",
        '<ol start="1"><li>a<div class="code"><div><span>text</span><button type="button" data-copy="code">Copy'
        "</button></div><pre><code>x\n\n- y</code></pre></div></li><li>b</li></ol>",
    ),
    "quote": (
        "> a\n> > b\nlazy\n\nc",
        "<blockquote><p>a</p><blockquote><p>b<br>lazy</p></blockquote></blockquote><p>c</p>",
    ),
    "rule": ("a\n\n---\n* * *", "<p>a</p><hr><hr>"),
    "table": (
        "| a | b\\|c |\n|:-:|--:|\n| *x* | y | z |\nend",
        '<table><thead><tr><th class="center">a</th><th class="right">b|c</th></tr></thead><tbody>'
        '<tr><td class="center"><em>x</em></td><td class="right">y</td></tr></tbody></table><p>end</p>',
    ),
    "no table": ("a | b\nc | d", "<p>a | b<br>c | d</p>"),
    "links": (
        '[a *b*](https://e.org/x_(y) "t"), <https://e.org/z>, https://e.org/w.',
        '<p><a href="https://e.org/x_(y)" target="_blank" rel="noopener noreferrer">a <em>b</em></a>, &lt;'
        '<a href="https://e.org/z" target="_blank" rel="noopener noreferrer">https://e.org/z</a>&gt;, '
        '<a href="https://e.org/w" target="_blank" rel="noopener noreferrer">https://e.org/w</a>.</p>',
    ),
    "no links": (
        "[a](javascript:x) [b](/relative) [c](vbscript:x) [d](data:,x) [e](file:///x)",
        "<p>[a](javascript:x) [b](/relative) [c](vbscript:x) [d](data:,x) [e](file:///x)</p>",
    ),
    "markup": ("<i>x</i> &amp; <!-- c -->", "<p>&lt;i&gt;x&lt;/i&gt; &amp;amp; &lt;!-- c --&gt;</p>"),
    "nothing": ("\n \n", ""),
}


@pytest.fixture
def render(open_tab: Callable[..., Any]) -> Callable[[list[str]], str]:
    page = open_tab(turns("</think>x")).page
    return lambda texts: page.evaluate(RENDER, texts)


def test_cases(render: Callable[[list[str]], str]) -> None:
    assert {name: render([text]) for name, (text, _) in CASES.items()} == {
        name: html for name, (_, html) in CASES.items()
    }


def test_piece_by_piece_is_the_same_as_at_once(render: Callable[[list[str]], str]) -> None:
    text = "\n\n".join(text for text, _ in CASES.values())
    for step in (1, 7, 50):
        pieces = [text[:end] for end in range(0, len(text), step)]
        assert render([*pieces, text]) == render([text])
    assert render([text, "# other"]) == "<h1>other</h1>"


@pytest.mark.timeout(60)
def test_no_text_takes_long(render: Callable[[list[str]], str]) -> None:
    n = 30_000
    for piece in ("*", "_", "**a", "*a _b ", "`", "``a`", "[", "![", "[a](", "[a](b", "<", "\\", "~~", "h", "https://"):
        assert render([piece * n]) != ""
    for piece in ("> ", "- ", "1. ", "  - a\n", "|", "|-", "```\n", "# ", "a|b\n", "-", "* * ", "\t- x\n"):
        assert render([piece * 3000]) is not None
    assert render(["> " * 3000 + "x", "- " * 3000 + "x"]) is not None
