"""Keeps one key's failure from its neighbours in a call."""

from __future__ import annotations

from tailcut.features.sources.base import Answer, Key, KeyTypeRefused, Source, SourceContext, SourceDown, SourceError


async def fetch_isolating(source: Source, keys: list[Key], context: SourceContext) -> list[Answer]:
    """Ask a source, halving the keys when it fails, so that one bad key does not fail its neighbours.

    A few halvings find one or two bad keys among many; when all are bad the rest is given up.

    Raises:
        SourceError: the source raised for every key, or failed in a way that has nothing to do with the keys.
    """
    halvings_left = 2 * len(keys).bit_length()
    answered = False

    async def ask(part: list[Key]) -> list[Answer]:
        nonlocal answered, halvings_left
        try:
            answers = await source.fetch(part, context)
        except (SourceDown, KeyTypeRefused):
            raise
        except SourceError as error:
            if len(part) == 1 or halvings_left <= 0:
                return [error] * len(part)
            halvings_left -= 1
            middle = len(part) // 2
            return await ask(part[:middle]) + await ask(part[middle:])
        if len(answers) != len(part):
            raise SourceDown(f"the source returned {len(answers)} rows for {len(part)} keys")
        answered = True
        return answers

    answers = await ask(keys)
    if not answered and isinstance(answers[0], SourceError):
        raise answers[0]
    return answers
