"""The live view: the cases on the left, what the model writes on the right.

The run works on a thread of its own; this one draws and reads keys. Everything the view shows is kept here, so that
any case can be looked at again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Layout, VSplit, Window
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from .control import Control
from .outcome import RUNNING, Outcome, State
from .plain import WIDE
from .plan import Task

_LIST_COLUMNS = 30
_MAX_SHOWN = 200_000  # characters of a stream that are kept for the eye

_STYLE = Style.from_dict(
    {
        "pending": "ansibrightblack",
        "prefill": "ansiyellow",
        "thinking": "ansicyan",
        "answer": "ansiblue bold",
        "passed": "ansigreen",
        "failed": "ansired",
        "skipped": "ansibrightblack",
        "stopped": "ansimagenta",
        "reasoning": "ansibrightblack",
        "selected": "reverse",
        "bar": "reverse",
    }
)
_MARKS: dict[State, str] = {
    "pending": " ", "prefill": ">", "thinking": "~", "answer": "=", "passed": "+", "failed": "x", "skipped": "-",
    "stopped": "!",
}  # fmt: skip


@dataclass(slots=True)
class _Shown:
    """What is known of one case."""

    state: State = "pending"
    note: str = ""
    n_generated: int = 0
    pieces: list[tuple[str, str]] = field(default_factory=list)
    size: int = 0
    given: str | None = None


class LiveView:
    """Shows a run and steers it; give it to `Runner` as the listener.

    Parameters
    ----------
    tasks : sequence of Task
    control : Control
        That of the run.
    known : mapping of int to Outcome
        What an earlier run had found.
    colour : bool
    input, output : optional
        Of prompt_toolkit; those of the terminal when not given.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        control: Control,
        *,
        known: dict[int, Outcome] | None = None,
        colour: bool = True,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._tasks = tasks
        self._control = control
        self._lock = threading.Lock()
        self._shown = [_Shown() for _ in tasks]
        for index, outcome in (known or {}).items():
            self._finish(self._shown[index], outcome)
        self._selected = 0
        self._follows = True
        self._running: int | None = None
        self._begin = time.monotonic()
        self._app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=self._keys(),
            style=_STYLE,
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            full_screen=True,
            refresh_interval=0.5,
            min_redraw_interval=0.05,
            input=input,
            output=output,
        )

    def show(self, work: Callable[[], object]) -> None:
        """Run `work` on a thread while the view is up; returns when both have ended.

        Raises
        ------
        Exception
            What `work` raised.
        """
        failure: list[BaseException] = []
        started = threading.Event()

        def body() -> None:
            started.wait()
            try:
                work()
            except BaseException as error:
                failure.append(error)
            finally:
                self._end()

        thread = threading.Thread(target=body, name="ds4-eval")
        thread.start()
        try:
            self._app.run(pre_run=started.set)
        except (EOFError, KeyboardInterrupt):  # the terminal went away
            pass
        finally:
            started.set()
            self._control.stop()  # nothing happens when the run is over
            thread.join()
        if failure:
            raise failure[0]

    # What the run tells, on its thread

    def state(self, index: int, state: State) -> None:
        """Take the state of a case."""
        with self._lock:
            shown = self._shown[index]
            if state == "prefill":  # a new beginning
                shown.pieces, shown.size, shown.n_generated, shown.given = [], 0, 0, None
                self._running = index
                if self._follows:
                    self._selected = index
            shown.state, shown.note = state, ""
        self._app.invalidate()

    def progress(self, index: int, done: int, total: int) -> None:
        """Take the state of the prefill."""
        with self._lock:
            self._shown[index].note = f"{done}/{total}"
        self._app.invalidate()

    def text(self, index: int, text: str, *, reasoning: bool, n_generated: int) -> None:
        """Take a piece of text."""
        with self._lock:
            shown = self._shown[index]
            shown.n_generated = n_generated
            style = "class:reasoning" if reasoning else ""
            if text:
                if not reasoning and shown.pieces and shown.pieces[-1][0]:
                    shown.pieces.append(("", "\n\n"))
                shown.pieces.append((style, text))
                shown.size += len(text)
                while shown.size > _MAX_SHOWN:
                    shown.size -= len(shown.pieces.pop(0)[1])
        self._app.invalidate()

    def done(self, index: int, outcome: Outcome) -> None:
        """Take the outcome of a case."""
        with self._lock:
            self._finish(self._shown[index], outcome)
            self._running = None
        self._app.invalidate()

    def _finish(self, shown: _Shown, outcome: Outcome) -> None:
        shown.state, shown.note, shown.given = outcome.state, "", outcome.given
        shown.n_generated = outcome.n_generated
        if not shown.pieces:
            shown.pieces = [("", outcome.output.decode("utf-8", "replace"))]

    def _end(self) -> None:
        """Close the view, from the thread of the run."""
        loop = self._app.loop
        if loop is not None:
            loop.call_soon_threadsafe(lambda: self._app.exit() if self._app.is_running else None)

    # Drawing

    def _layout(self) -> Layout:
        def part(text: Callable[[], StyleAndTextTuples], **options: Any) -> Window:
            return Window(FormattedTextControl(text, show_cursor=False), always_hide_cursor=True, **options)

        wide = Condition(lambda: self._size()[1] >= WIDE)
        cases = VSplit([part(self._list_text, width=_LIST_COLUMNS), Window(width=1, char="│")])
        return Layout(
            HSplit(
                [
                    VSplit([ConditionalContainer(cases, wide), part(self._stream_text)]),
                    part(self._bar_text, height=1, style="class:bar"),
                ]
            )
        )

    def _size(self) -> tuple[int, int]:
        size = self._app.output.get_size()
        return size.rows, size.columns

    def _list_text(self) -> StyleAndTextTuples:
        rows = max(self._size()[0] - 1, 1)
        with self._lock:
            first = min(max(self._selected - rows // 2, 0), max(len(self._tasks) - rows, 0))
            out: StyleAndTextTuples = []
            for index in range(first, min(first + rows, len(self._tasks))):
                shown = self._shown[index]
                style = f"class:{shown.state}" + (" class:selected" if index == self._selected else "")
                line = f"{_MARKS[shown.state]} {self._tasks[index].case.id}"
                out.append((style, _padded(line, _LIST_COLUMNS) + "\n"))
            return out

    def _stream_text(self) -> StyleAndTextTuples:
        rows, columns = self._size()
        width = max(columns - (_LIST_COLUMNS + 1 if columns >= WIDE else 0), 1)
        with self._lock:
            index = self._selected
            task, shown = self._tasks[index], self._shown[index]
            pieces = list(shown.pieces)
            head = f"{task.case.name}  {shown.state} {shown.note}".rstrip()
            if shown.state in ("passed", "failed"):
                head += f"  given {shown.given or '-'}, correct {task.case.expected}"
        if not pieces:
            pieces = [("class:reasoning", _last_message(task))]
        lines = wrapped(pieces, width, max(rows - 3, 1))
        out: StyleAndTextTuples = [(f"class:{shown.state}", _padded(head, width).rstrip() + "\n\n")]
        for line in lines:
            out += [*line, ("", "\n")]
        return out

    def _bar_text(self) -> StyleAndTextTuples:
        with self._lock:
            states = [shown.state for shown in self._shown]
            running = self._shown[self._running] if self._running is not None else None
            generated = f"  {running.n_generated} tokens" if running and running.state in RUNNING else ""
        n_done = sum(state in ("passed", "failed") for state in states)
        seconds = round(time.monotonic() - self._begin - self._control.paused_s)
        text = f" {n_done}/{len(states)}  passed {states.count('passed')}  failed {states.count('failed')}"
        text += f"  {seconds // 60}:{seconds % 60:02}{generated}"
        text += "  PAUSED" if self._control.paused else ""
        keys = "  ↑↓ select  ⏎ run  p pause  q stop "
        columns = self._size()[1]
        return [("", _padded(text + keys if len(text) + len(keys) <= columns else text, columns))]

    # Keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("up")
        @keys.add("k")
        def _up(event: KeyPressEvent) -> None:
            self._select(-1)

        @keys.add("down")
        @keys.add("j")
        def _down(event: KeyPressEvent) -> None:
            self._select(1)

        @keys.add("enter")
        def _enter(event: KeyPressEvent) -> None:
            with self._lock:
                index, running = self._selected, self._running
                self._follows = True
            if index != running:
                self._control.run_next(index)

        @keys.add("p")
        def _pause(event: KeyPressEvent) -> None:
            self._control.toggle_pause()

        @keys.add("q")
        @keys.add("c-c")
        @keys.add("c-d")
        @keys.add("<sigint>")
        def _quit(event: KeyPressEvent) -> None:
            self._control.stop()

        return keys

    def _select(self, step: int) -> None:
        with self._lock:
            self._selected = min(max(self._selected + step, 0), len(self._tasks) - 1)
            self._follows = self._selected == self._running


def wrapped(pieces: Sequence[tuple[str, str]], width: int, rows: int) -> list[StyleAndTextTuples]:
    """Return the last rows of a text, cut into lines that are not wider than `width` columns.

    Control characters of the model become dots: none of them reaches the terminal.
    """
    kept: list[tuple[str, str]] = []
    room = width * rows + rows  # characters that can be seen at most, line ends included
    for style, text in reversed(pieces):
        kept.append((style, text[-room:]))
        room -= len(text)
        if room <= 0:
            break
    lines: list[StyleAndTextTuples] = [[]]
    used = 0
    for style, text in reversed(kept):
        run = ""
        for char in text:
            if char == "\n":
                lines[-1].append((style, run))
                lines.append([])
                run, used = "", 0
                continue
            char = "    " if char == "\t" else char if char.isprintable() else "·"
            columns = get_cwidth(char)
            if used + columns > width:
                lines[-1].append((style, run))
                lines.append([])
                run, used = "", 0
            run += char
            used += columns
        lines[-1].append((style, run))
    return lines[-rows:]


def _last_message(task: Task) -> str:
    """Return what a case asks, for the eye."""
    return str(task.case.messages[-1].get("content") or "") if task.case.messages else task.question


def _padded(text: str, width: int) -> str:
    """Cut or fill a text to a number of columns."""
    out, used = "", 0
    for char in text:
        char = char if char.isprintable() else "·"
        columns = get_cwidth(char)
        if used + columns > width:
            return out[:-1] + "…" + " " * (width - used) if out else ""
        out += char
        used += columns
    return out + " " * (width - used)
