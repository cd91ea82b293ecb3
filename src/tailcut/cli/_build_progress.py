"""What ``tailcut build`` shows while it works: a live table on a terminal, a line per finished step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread
from types import TracebackType
from typing import TYPE_CHECKING

from tailcut.builder.progress import CALM_S, Board, Event, Line, Log, Progress, Row
from tailcut.errors import TailcutError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_STYLES = {"passed": "green", "refused": "yellow", "not here": "dim", "not made": "dim", "waiting": "dim"}
_JOIN_S = 2.0


@contextmanager
def shown(console: Console | None = None) -> Iterator[Progress]:
    """Show the events that are told inside; what is live is gone afterwards.

    Args:
        console: where; by default stderr.
    """
    from rich.console import Console

    # Not the console of other messages: lines that wrap by themselves would be more than the table believes.
    console = console or Console(stderr=True, highlight=False)
    log = Log()

    def write(lines: list[Line]) -> None:
        for line in lines:
            console.print(line.text, markup=False, soft_wrap=True)

    error: str | None = ""
    try:
        if console.is_interactive:
            with LiveTable(console) as table:

                def tell(event: Event) -> None:
                    table.take(event)
                    write([line for line in log.take(event) if line.failure])

                yield tell
        else:
            yield lambda event: write(log.take(event))
        error = None
    except TailcutError as ended:
        error = ended.message
        raise
    except KeyboardInterrupt:
        write(log.stopped())
        raise
    finally:
        write(log.close(error))


class LiveTable:
    """Draws the board every ``Board.redraw_s``, and only between rounds while requests are sent.

    Those are sent from this very process: a drawing takes milliseconds, which would show up as send lag.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._board = Board()
        self._changed = Condition()
        self._over = False
        self._drawn_s = -CALM_S
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, get_renderable=self._render
        )
        self._thread = Thread(target=self._redraw, name="build-table", daemon=True)

    def __enter__(self) -> LiveTable:
        self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join(_JOIN_S)
        self._live.stop()

    def take(self, event: Event) -> None:
        """Take in what happened."""
        with self._changed:
            was_held = self._board.redraw_s is None
            self._board.take(event, time.monotonic())
            if self._board.redraw_s is not None:
                if was_held:
                    self._changed.notify()
            elif time.monotonic() - self._drawn_s >= CALM_S:
                self._draw()

    def _redraw(self) -> None:
        with self._changed:
            while not self._over:
                if self._board.redraw_s is not None:
                    self._draw()
                self._changed.wait(self._board.redraw_s)

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._live.refresh()

    def _render(self) -> RenderableType:
        now_s = time.monotonic()
        return rendered(self._board.title(now_s), self._board.rows(now_s))


def rendered(title: str, rows: list[Row]) -> RenderableType:
    """Lay the rows out: a line on what is under way, and a table below it where a variant is known."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(title, no_wrap=True, overflow="ellipsis")]
    if rows:
        parts.append(_table(rows))
    return Group(*parts)


def _table(rows: list[Row]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("why")
    for row in rows:
        step = "" if row.step_s is None else f", {row.step_s:.0f} s"
        took = f"{row.took_s:.0f} s" if row.took_s else ""
        style = "bold" if row.step_s is not None else _STYLES.get(row.state, "")
        # The one column that gives way where the terminal is narrow; each row stays one line.
        why = Text(row.why, no_wrap=True, overflow="ellipsis")
        table.add_row(Text(row.name), Text(row.state + step), Text(took), why, style=style)
    return table
