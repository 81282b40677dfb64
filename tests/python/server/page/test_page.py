"""The chat page in a real browser, against a real server whose model follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ds4
import pytest
from support.scripted import turns

expect = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed").expect

Open = Callable[..., Any]
D = "｜DSML｜"


def last_user(prompt: str) -> str:
    return prompt.rpartition("<｜User｜>")[2].partition("<｜Assistant｜>")[0]


def test_a_question_and_its_answer(open_tab: Open) -> None:
    tab = open_tab(turns("I add them.</think>It is **5**, `five`."))
    expect(tab.page.locator("#model")).to_have_text("test-model")
    tab.say("What is 2 + 3?")
    expect(tab.answer.locator("strong")).to_have_text("5")
    tab.wait()
    expect(tab.page.locator("article.user .content")).to_have_text("What is 2 + 3?")
    expect(tab.answer.locator(".content")).to_have_text("It is 5, five.")
    expect(tab.answer.locator(".figures")).to_contain_text("tokens/s")
    expect(tab.page.locator("#text")).to_be_focused()
    thought = tab.answer.locator("details.reasoning")
    expect(thought).not_to_have_attribute("open", "")
    expect(thought.locator("summary")).to_contain_text("Thought")
    thought.locator("summary").click()
    expect(thought.locator("p")).to_have_text("I add them.")


def test_what_is_sent_stays_on_this_server(open_tab: Open) -> None:
    tab = open_tab(
        turns("</think>[a picture](http://example.org/) ![x](http://example.org/x.png) http://example.org/y")
    )
    tab.say("links")
    tab.wait()
    expect(tab.answer.locator("a")).to_have_count(3)
    hosts = {request.url.split("/")[2] for request in tab.requests if not request.url.startswith("data:")}
    assert len(hosts) == 1 and next(iter(hosts)).startswith("127.0.0.1:")
    for link in tab.answer.locator("a").all():
        assert link.get_attribute("rel") == "noopener noreferrer" and link.get_attribute("target") == "_blank"


def test_text_of_a_model_never_becomes_markup(open_tab: Open) -> None:
    evil = (
        "<img src=x onerror=alert(1)> <script>alert(1)</script> **<b>x</b>** `<i>`\n\n"
        "[click](javascript:alert(1)) [data](data:text/html,x) [ok](https://example.org/?a=<b>)\n\n"
        "| <u>a</u> | b |\n|---|---|\n| <svg onload=alert(1)> | [x](JaVaScRiPt:alert(1)) |\n\n"
        "```<html>\n<script>alert(2)</script>\n```\n"
    )
    tab = open_tab(turns(f"<b>thought</b></think>{evil}"))
    dialogs: list[Any] = []
    tab.page.on("dialog", lambda dialog: (dialogs.append(dialog), dialog.dismiss()))
    tab.say("<u>mine</u>")
    tab.wait()
    content = tab.answer.locator(".content")
    for name in ("img", "script", "b", "i", "u", "svg"):
        expect(tab.page.locator(f"main {name}")).to_have_count(0)
    expect(content).to_contain_text("<img src=x onerror=alert(1)>")
    expect(content.locator("pre")).to_have_text("<script>alert(2)</script>")
    assert [a.get_attribute("href").split(":")[0] for a in content.locator("a").all()] in ([], ["https"])
    assert dialogs == []


def test_thinking_is_shown_while_it_lasts_and_stop_ends_it(open_tab: Open) -> None:
    tab = open_tab(turns("word " * 3000 + "</think>done"), seconds_a_token=0.005)
    tab.say("think")
    expect(tab.answer.locator("details.reasoning summary")).to_have_text("Thinking …")
    expect(tab.page.locator("#stop")).to_be_visible()
    expect(tab.page.locator("#send")).to_be_hidden()
    expect(tab.page.locator("#status")).to_contain_text("pieces/s")
    tab.page.keyboard.press("Escape")
    tab.wait()
    expect(tab.page.locator("#status")).to_have_text("stopped")
    expect(tab.answer.locator(".figures")).to_contain_text("stopped")
    assert "done" not in tab.answer.inner_text()


def test_stop_button_regenerate_and_edit(open_tab: Open) -> None:
    seen: list[str] = []

    def script(prompt: str) -> str:
        seen.append(last_user(prompt))
        return f"</think>answer {len(seen)} to {seen[-1]} " + ("and on " * 1500 if len(seen) == 1 else "")

    tab = open_tab(script, seconds_a_token=0.005)
    tab.say("first")
    expect(tab.answer.locator(".content")).to_contain_text("answer 1 to first and on")
    tab.page.locator("#stop").click()
    tab.wait()
    kept = tab.answer.locator(".content").inner_text()
    assert kept.startswith("answer 1 to first")
    # The scripted model answers a prompt that it knows as before; with another temperature it would not.
    tab.page.get_by_role("button", name="Regenerate").click()
    expect(tab.page.locator("article")).to_have_count(2)
    tab.page.locator("#stop").click()
    tab.wait()
    tab.page.get_by_role("button", name="Edit").click()
    expect(tab.page.locator("article")).to_have_count(0)
    expect(tab.page.locator("#text")).to_have_value("first")
    tab.say("second")
    tab.wait()
    expect(tab.page.locator("article")).to_have_count(2)
    expect(tab.answer.locator(".content")).to_have_text("answer 2 to second")
    # Up in the empty field does the same as the button.
    tab.page.locator("#text").press("ArrowUp")
    expect(tab.page.locator("#text")).to_have_value("second")


def test_the_conversation_outlives_the_page(open_tab: Open) -> None:
    tab = open_tab(turns("r</think>**one**", "</think>two"))
    tab.say("1\n2")
    tab.wait()
    tab.page.reload()
    expect(tab.answer.locator("strong")).to_have_text("one")
    assert tab.page.locator("article.user .content").inner_text() == "1\n2"
    tab.say("again")
    tab.wait()
    expect(tab.answer.locator(".content")).to_have_text("two")
    expect(tab.page.locator("article")).to_have_count(4)
    tab.page.locator("#new").click()
    expect(tab.page.locator("article")).to_have_count(0)
    tab.page.reload()
    expect(tab.page.locator("article")).to_have_count(0)


def test_damaged_storage_is_passed_over(open_tab: Open) -> None:
    tab = open_tab(turns("</think>ok"))
    for wrong in ("{", '"x"', '[1, null, {"role": "evil"}, {"role": "user", "content": 5}]'):
        tab.page.evaluate("(text) => localStorage.setItem('ds4.conversation', text)", wrong)
        tab.page.evaluate("() => localStorage.setItem('ds4.settings', '[]')")
        tab.page.reload()
        expect(tab.page.locator("#model")).to_have_text("test-model")
    expect(tab.page.locator("article")).to_have_count(1)


def test_settings_go_into_the_request(open_tab: Open) -> None:
    tab = open_tab(lambda prompt: "r</think>yes" if prompt.endswith("<think>") else "no thoughts")
    page = tab.page

    def last_body() -> dict[str, Any]:
        posts = [request for request in tab.requests if request.method == "POST"]
        body: dict[str, Any] = json.loads(posts[-1].post_data)
        return body

    tab.say("a")
    tab.wait()
    assert {"thinking", "temperature", "max_tokens", "tools"}.isdisjoint(last_body())
    page.locator("#open-settings").click()
    page.locator("#thinking").select_option("off")
    page.locator("#temperature").fill("0.25")
    page.locator("#max-tokens").fill("7")
    page.locator("#system").fill("Be brief.")
    page.get_by_role("button", name="Save").click()
    tab.say("b")
    tab.wait()
    body = last_body()
    assert (body["thinking"], body["temperature"], body["max_tokens"]) == (False, 0.25, 7)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["messages"][2]["reasoning_content"] == "r"  # what was thought is shown to the server again
    expect(tab.answer.locator(".content")).to_have_text("no thoughts")
    expect(tab.answer.locator("details.reasoning")).to_have_count(0)
    page.reload()
    page.keyboard.press("Control+,")
    expect(page.locator("#temperature")).to_have_value("0.25")
    page.locator("#thinking").select_option("max")
    page.locator("#tools").fill("[{]")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#settings-error")).to_contain_text("not JSON")
    page.locator("#tools").fill("{}")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#settings-error")).to_contain_text("a list")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#settings")).to_be_hidden()
    page.keyboard.press("Control+,")
    expect(page.locator("#thinking")).to_have_value("off")
    page.locator("#thinking").select_option("max")
    page.locator("#temperature").press("Enter")
    expect(page.locator("#settings")).to_be_hidden()
    tab.say("c")
    tab.wait()
    assert (last_body()["thinking"], last_body()["reasoning_effort"]) == (True, "max")


def test_tool_calls_are_shown_and_can_be_answered(open_tab: Open) -> None:
    call = (
        f'I look.\n\n<{D}tool_calls>\n<{D}invoke name="weather">\n<{D}parameter name="city" string="true">Catania'
        f'</{D}parameter>\n<{D}parameter name="days" string="false">3</{D}parameter>\n</{D}invoke>\n</{D}tool_calls>'
    )
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return f"</think>{call}" if "<tool_result>" not in prompt else "</think>It is warm."

    tab = open_tab(script)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    tab.page.locator("#open-settings").click()
    tab.page.locator("#tools").fill(json.dumps(tools))
    tab.page.get_by_role("button", name="Save").click()
    tab.say("weather?")
    tab.wait()
    expect(tab.answer.locator("details.call summary")).to_have_text("Calls weather")
    assert json.loads(tab.answer.locator("details.call pre").inner_text()) == {"city": "Catania", "days": 3}
    expect(tab.answer.locator(".content")).to_have_text("I look.")
    tab.page.get_by_label("Result of weather").fill("30 degrees")
    tab.page.get_by_role("button", name="Send results").click()
    expect(tab.answer.locator(".content")).to_have_text("It is warm.")
    tab.wait()
    assert "<tool_result>30 degrees</tool_result>" in prompts[-1]
    expect(tab.page.locator("article.tool .content")).to_have_text("30 degrees")
    expect(tab.page.get_by_role("button", name="Send results")).to_have_count(0)


def test_a_key_is_asked_for_and_kept_for_the_tab_only(open_tab: Open) -> None:
    tab = open_tab(turns("</think>welcome"), api_keys=("secret",))
    dialog = tab.page.locator("#key")
    expect(dialog).to_be_visible()
    tab.page.locator("#key-text").fill("wrong")
    tab.page.get_by_role("button", name="Use").click()
    expect(tab.page.locator("#key-reason")).to_contain_text("the API key is wrong")
    expect(dialog).to_be_visible()
    tab.page.locator("#key-text").fill("secret")
    tab.page.locator("#key-text").press("Enter")
    expect(tab.page.locator("#model")).to_have_text("test-model")
    tab.say("hi")
    tab.wait()
    expect(tab.answer.locator(".content")).to_have_text("welcome")
    assert "secret" not in tab.page.evaluate("() => JSON.stringify(localStorage)")
    assert "secret" in tab.page.evaluate("() => JSON.stringify(sessionStorage)")
    tab.problems[:] = [p for p in tab.problems if "401" not in p]  # the browser notes refused requests


def test_refusals_are_told(open_tab: Open) -> None:
    tab = open_tab(turns("</think>short"), n_ctx=256)
    tab.say("word " * 400)
    tab.wait()
    expect(tab.answer.get_by_role("alert")).to_contain_text("room for 256")
    tab.page.locator("#text").press("ArrowUp")
    tab.say("short")
    tab.wait()
    expect(tab.answer.locator(".content")).to_have_text("short")
    tab.problems[:] = [p for p in tab.problems if "400" not in p]


def test_light_and_dark(open_tab: Open) -> None:
    tab = open_tab(turns("</think>x"))

    def back() -> str:
        return str(tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    tab.page.emulate_media(color_scheme="light")
    light = back()
    tab.page.emulate_media(color_scheme="dark")
    dark = back()
    assert light != dark
    tab.page.locator("#theme").click()
    assert back() == light
    tab.page.locator("#theme").click()
    tab.page.emulate_media(color_scheme="light")
    assert back() == dark
    tab.page.reload()
    assert back() == dark


def test_a_long_answer_stays_quick(open_tab: Open) -> None:
    """The part that is complete is not touched again; the page follows the end."""
    text = "".join(f"Paragraph {i} with *some* words and `code`.\n\n" for i in range(80))
    tab = open_tab(turns(f"</think>{text}"), n_ctx=8192)
    tab.say("much")
    expect(tab.answer.locator("p").first).to_contain_text("Paragraph 0")
    first = tab.answer.locator("p").first.element_handle()
    expect(tab.answer.locator("p").last).to_contain_text("Paragraph 79", timeout=30_000)
    tab.wait()
    expect(tab.answer.locator("p")).to_have_count(80)
    assert first.evaluate("(p) => p.isConnected")
    at_end = "() => { const m = document.querySelector('main'); return m.scrollHeight - m.scrollTop - m.clientHeight; }"
    assert tab.page.evaluate(at_end) < 60


def test_the_embedded_model_answers(open_tab: Open) -> None:
    with ds4.Model.open_embedded() as model:
        tab = open_tab(model)
        tab.page.locator("#open-settings").click()
        tab.page.locator("#temperature").fill("0")
        tab.page.locator("#max-tokens").fill("40")
        tab.page.get_by_role("button", name="Save").click()
        tab.say("What is 2 + 3?")
        tab.wait()
        expect(tab.answer.locator(".figures")).to_contain_text("tokens")
        assert tab.answer.inner_text().strip()
        tab.context.close()
