"""How long work tells what it has done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called now and then with the units done, the units in all, and the name of what is at hand.

An exception that it raises stops the work, which leaves everything as an interruption would.
"""
