"""The answer of the Responses interface, as events and as one object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..contract import Done, RequestError, TokenLogprob
from .fields import Call, ToolKind
from .reply import CallText, Objects, Reply, token_logprob
from .response_items import sealed

_STATUS = {"stop": "completed", "tool_calls": "completed", "length": "incomplete"}


class ResponsesReply(Reply):
    """A response and the events of its stream."""

    def __init__(self, call: Call, prompt_tokens: int) -> None:
        super().__init__(call, prompt_tokens)
        self.output: list[dict[str, Any]] = []
        self._sequence = 0
        self._open: str | None = None
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._kind = ToolKind("function", "")

    def begin(self) -> Objects:
        """Return the two events that open a response."""
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def reasoning(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return a piece of the summary, if the client asked for one."""
        if not self.call.show_reasoning and not self.call.carry_reasoning:
            return []
        objects = self._ensure("reasoning")
        self._text.append(text)
        if not self.call.show_reasoning:
            return objects
        place = self._place(summary_index=0)
        return [*objects, self._event("response.reasoning_summary_text.delta", **place, delta=text)]

    def content(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return a piece of the text."""
        objects = self._ensure("message")
        self._text.append(text)
        shown = [token_logprob(token) for token in tokens]
        self._logprobs.extend(shown)
        place = self._place(content_index=0)
        return [*objects, self._event("response.output_text.delta", **place, delta=text, logprobs=shown)]

    def call_start(self, choice: int, made: CallText) -> Objects:
        """Return the start of a call's item."""
        objects = self._close("completed")
        self._open = "call"
        self._kind = self.call.tools.get(made.name, ToolKind("function", made.name))
        self.output.append(self._call_item(made, "in_progress"))
        return [*objects, self._added()]

    def call_arguments(self, choice: int, made: CallText, text: str) -> Objects:
        """Return a piece of the arguments; of other tools than functions the whole input follows at the end."""
        if self._kind.kind != "function":
            return []
        return [self._event("response.function_call_arguments.delta", **self._place(), delta=text)]

    def call_end(self, choice: int, made: CallText) -> Objects:
        """Return the end of a call's item; one that was cut off stays incomplete."""
        status = "completed" if made.error is None else "incomplete"
        item = self.output[-1] = self._call_item(made, status)
        objects = []
        if self._kind.kind == "function" and made.error is None:
            name = "response.function_call_arguments.done"
            objects.append(self._event(name, **self._place(), name=item["name"], arguments=made.text))
        elif self._kind.kind == "custom" and made.error is None:
            delta = self._event("response.custom_tool_call_input.delta", **self._place(), delta=item["input"])
            done = self._event("response.custom_tool_call_input.done", **self._place(), input=item["input"])
            objects += [delta, done]
        self._open = None
        return [*objects, self._item_done()]

    def done(self, choice: int, event: Done) -> Objects:
        """Return the end of the last item and of the response."""
        status = _STATUS[event.finish]
        objects = self._close(status)
        if not self.output and status == "completed":
            objects += self._ensure("message") + self._close(status)
        return [*objects, self._event(f"response.{status}", response=self._response(status))]

    def whole(self) -> dict[str, Any]:
        """Return the response."""
        done = self.choices[0].done
        assert done is not None
        return self._response(_STATUS[done.finish])

    def failed(self, error: RequestError) -> bytes:
        """Return the event of a response that failed."""
        response = self._response("failed")
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self.encode(self._event("response.failed", response=response))

    # Items

    def _ensure(self, kind: str) -> Objects:
        """Open an item of a kind unless it is open."""
        if self._open == kind:
            return []
        objects = self._close("completed")
        self._open = kind
        number = len(self.output)
        if kind == "reasoning":
            item = {"id": f"rs_{self.hex}{number:02x}", "type": "reasoning", "summary": [], "status": "in_progress"}
            part, place = {"type": "summary_text", "text": ""}, {"summary_index": 0}
            name = "response.reasoning_summary_part.added"
        else:
            item = {
                "id": f"msg_{self.hex}{number:02x}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            part, place = _text_part("", []), {"content_index": 0}
            name = "response.content_part.added"
        self.output.append(item)
        objects.append(self._added())
        if kind == "message" or self.call.show_reasoning:
            objects.append(self._event(name, **self._place(**place), part=part))
        return objects

    def _close(self, status: str) -> Objects:
        """Close the open item."""
        if self._open is None:
            return []
        item = self.output[-1]
        text = "".join(self._text)
        self._text.clear()
        objects = []
        if self._open == "reasoning":
            part: dict[str, Any] = {"type": "summary_text", "text": text}
            place = self._place(summary_index=0)
            over = {**item, "status": status}
            if self.call.show_reasoning:
                objects.append(self._event("response.reasoning_summary_text.done", **place, text=text))
                objects.append(self._event("response.reasoning_summary_part.done", **place, part=part))
                over["summary"] = [part]
            if self.call.carry_reasoning:
                over["encrypted_content"] = sealed(text)
            self.output[-1] = over
        elif self._open == "message":
            part = _text_part(text, self._logprobs)
            place = self._place(content_index=0)
            objects.append(self._event("response.output_text.done", **place, text=text, logprobs=self._logprobs))
            objects.append(self._event("response.content_part.done", **place, part=part))
            self.output[-1] = {**item, "content": [part], "status": status}
            self._logprobs = []
        self._open = None
        return [*objects, self._item_done()]

    def _call_item(self, made: CallText, status: str) -> dict[str, Any]:
        kind = self._kind
        number = self.output[-1]["id"] if made.over else f"fc_{self.hex}{len(self.output):02x}"
        item: dict[str, Any] = {"id": number, "call_id": made.id, "status": status}
        complete = made.over and made.error is None
        value = json.loads(made.text) if complete else {}
        match kind.kind:
            case "function":
                text = made.text if made.over else ""
                item |= {"type": "function_call", "name": kind.name, "arguments": text}
                if kind.namespace is not None:
                    item["namespace"] = kind.namespace
            case "custom":
                given = value.get("input", "")
                text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
                item |= {"type": "custom_tool_call", "name": kind.name, "input": text}
                if kind.namespace is not None:
                    item["namespace"] = kind.namespace
            case "tool_search":
                item |= {"type": "tool_search_call", "execution": "client", "arguments": value}
            case "local_shell":
                item |= {"type": "local_shell_call", "action": {"type": "exec", "env": {}, "command": [], **value}}
        return item

    # Events

    def _event(self, kind: str, **content: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._sequence, **content}
        self._sequence += 1
        return event

    def _place(self, **more: int) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1, **more}

    def _added(self) -> dict[str, Any]:
        return self._event("response.output_item.added", output_index=len(self.output) - 1, item=dict(self.output[-1]))

    def _item_done(self) -> dict[str, Any]:
        return self._event("response.output_item.done", output_index=len(self.output) - 1, item=dict(self.output[-1]))

    def _response(self, status: str) -> dict[str, Any]:
        over = status in ("completed", "incomplete")
        response: dict[str, Any] = {
            "id": f"resp_{self.hex}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.request.model,
            "output": list(self.output) if status != "in_progress" else [],
            **self.call.echo,
            "usage": self._usage() if over else None,
        }
        if over:
            response["ds4"] = self.insight()
        return response

    def _usage(self) -> dict[str, Any]:
        usage = self.usage()
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.computed},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.completion,
        }


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
