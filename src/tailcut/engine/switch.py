"""The parts of a switch from one variant to another: loading that disturbs nobody, and the end of the old one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from tailcut.code.digest import few
from tailcut.code.loaded import LoadedCode
from tailcut.engine.call import Call
from tailcut.engine.version import has_own_types, is_live
from tailcut.errors import ArtifactError, StartError, TailcutError
from tailcut.manifest import Deployment
from tailcut.manifest.answering import other_settings, other_tensors
from tailcut.registry import Variant
from tailcut.runtimes.floats import take_mode_of_models
from tailcut.runtimes.priority import low_priority

if TYPE_CHECKING:
    from tailcut.engine.opening import Opened  # which opens pools, and those open executors in the background

T = TypeVar("T")


_LOOK_S = 0.01


async def in_background(work: Callable[[], T], drop: Callable[[T], None]) -> T:
    """Run blocking work in a thread of its own and of low priority; a daemon, so that it holds up no exit.

    Args:
        drop: called with the result, in a thread, where nobody waits for it any more: closing may take seconds.

    Raises:
        TailcutError: what ``work`` raised; a StartError where that was something else.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: list[T], error: TailcutError | None) -> None:
        if future.done():
            _drop(drop, result)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result[0])

    def run() -> None:
        result: list[T] = []
        error: TailcutError | None = None
        take_mode_of_models()  # warm runs take as long as those of requests
        try:
            with low_priority():
                result.append(work())
        except TailcutError as raised:
            error = raised
        except BaseException as raised:  # the user's code may raise SystemExit
            error = foreseen(raised)
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            for each in result:
                drop(each)

    threading.Thread(target=run, name="tailcut-loader", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        # The result may have arrived already, and this task not have had its turn since.
        if future.done() and not future.cancelled() and future.exception() is None:
            _drop(drop, [future.result()])
        raise


def _drop(drop: Callable[[T], None], result: Sequence[T]) -> None:
    """Close what nobody waits for, in a thread: that may take seconds, and the event loop has others to look after."""
    for each in result:
        threading.Thread(target=drop, args=(each,), name="tailcut-dropper", daemon=True).start()


def abandon(opening: asyncio.Task[T], drop: Callable[[T], None]) -> None:
    """Wait no more for what is being opened, and let go of it where it is open by now; nobody else may have it."""

    def ended(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and task.exception() is None:
            _drop(drop, [task.result()])

    opening.cancel()
    opening.add_done_callback(ended)


def foreseen(error: BaseException) -> TailcutError:
    """Return an error as it is, or what nobody foresaw as the cause of one that says so."""
    if isinstance(error, TailcutError):
        return error
    found = StartError(f"unexpected {type(error).__name__}: {error}", hint="see the server's log")
    found.__cause__ = error
    return found


def refuse_other_model(deployment: Deployment, files: LoadedCode, variant: Variant) -> None:
    """Refuse what this process cannot serve, because its manifest or the user's code is of another build.

    Code is compared as this process has imported it, whatever its files are by now. Of a variant that runs the user's
    own object, that code is imported where it is not yet.

    Raises:
        ArtifactError: the tensors, settings that answers depend on, or the code differ.
    """
    refuse_other_tensors(deployment, variant)
    if differ := other_settings(deployment, variant.manifest, live=is_live(variant)):
        raise ArtifactError(
            f"{_what(variant)} it was built with another manifest than this server was started with: {few(differ)}",
            hint=_RESTART,
        )
    if variant.code is None:  # built by a tailcut that did not write the code down
        if changed := files.changed():
            raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)
        return
    if has_own_types(deployment, variant) and (changed := files.changed()):
        # Its types may be imported only now, as they are by now.
        raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)
    live = is_live(variant)
    lacks = files.lacks(variant.code, live=live)
    if not lacks and live and deployment.pool.executor != "process":
        files.import_source()
        lacks = files.lacks(variant.code, live=live)
    if lacks:
        there = not files.disk_lacks(variant.code, live=live)
        put_back = f"put its code back with `tailcut registry code {variant.version} FOLDER`, then restart to serve it"
        raise ArtifactError(
            f"{_what(variant)} it was built with other code than this server has loaded: {few(lacks)}",
            hint=_RESTART if there else f"{put_back}; until then this server serves what it served",
        )
    if live and (changed := files.changed_data()):  # its source is called now, and reads them as they are
        raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)


def refuse_other_tensors(deployment: Deployment, variant: Variant) -> None:
    """Refuse a variant whose inputs or outputs are not those of the manifest.

    Raises:
        ArtifactError: they differ.
    """
    if differ := other_tensors(deployment, variant.inputs, variant.outputs):
        raise ArtifactError(f"{_what(variant)} {differ}", hint=_RESTART)


_RESTART = "restart to serve it; until then this server serves what it served"


def _what(variant: Variant) -> str:
    return f"variant {variant.name!r} of version {variant.version} is to be served, but"


async def retire(old: Opened, in_flight: Mapping[Call, None], timeout_s: float) -> None:
    """Let the requests of a variant end that is no longer served, then close its executors and runtimes.

    Args:
        in_flight: all requests that are being answered; none is admitted to ``old`` any more.
        timeout_s: the longest that a request may take; what is still there then, fails.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    paths = {each.path for each in (old, old.fallback) if each is not None}
    left = [call for call in in_flight if call.path in paths]
    # Looked after from time to time, so that the end of a request costs nothing more.
    while any(call in in_flight for call in left) and loop.time() < give_up_s:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    try:
        for each in (old, old.fallback):
            if each is not None and each.executor == "inline":
                # Freeing a large model takes long; executors with a thread of their own do it there.
                await loop.run_in_executor(None, each.close)
    finally:
        await old.stop(max(give_up_s - loop.time(), _LOOK_S))
