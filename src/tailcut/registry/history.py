"""Promotions as a stack that keeps its past: pure functions from one pointer to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from tailcut.registry.records import Move, Promotion

LONGEST_HISTORY = 100
"""Moves that a pointer keeps; older ones are forgotten."""


def promoted(current: Promotion | None, move: Move) -> Promotion:
    """Put a promotion on top; the same variant again leaves the pointer as it is."""
    if current is not None and (current.version, current.variant) == (move.version, move.variant):
        return current
    return _pointer((move, *(() if current is None else current.history)))


def earlier(current: Promotion) -> Iterator[Move]:
    """Yield what a rollback could go back to, newest first."""
    steps = _standing(current.history)
    next(steps, None)
    for _, move in steps:
        yield move


def rolled_back(current: Promotion, at: str, unusable: Callable[[Move], str]) -> Promotion | None:
    """Go back to the newest earlier promotion that can still be served; again further back.

    Args:
        current: the pointer.
        at: now.
        unusable: says why a move's variant cannot be served; empty where it can.

    Returns:
        the new pointer, or None where nothing is left to go back to.
    """
    moves = current.history
    for index, move in list(_standing(moves))[1:]:
        if not unusable(move):
            behind = tuple(replace(each, undone=True) for each in moves[:index])
            back = Move(version=move.version, variant=move.variant, at=at, how="rollback")
            return _pointer((back, *behind, *moves[index:]))
    return None


def _pointer(moves: tuple[Move, ...]) -> Promotion:
    top = moves[0]
    return Promotion(version=top.version, variant=top.variant, promoted=top.at, history=moves[:LONGEST_HISTORY])


def _standing(moves: tuple[Move, ...]) -> Iterator[tuple[int, Move]]:
    """Promotions that no rollback has gone behind; the first is what is served."""
    return ((index, move) for index, move in enumerate(moves) if not move.undone and move.how != "rollback")
