"""Many sequences, half of them with SQLite and caches in memory, half with PostgreSQL and caches in Redis.

    python -m tests.sequences [--count 200] [--first SEED]

The exit code is 1 where an answer was wrong, or a switch was made that had to be refused.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence as Arguments
from pathlib import Path

from tests.integration.servers import postgres_server, redis_server
from tests.sequences.running import STEPS_OF_ONE, Sequence


def main(arguments: Arguments[str]) -> int:
    """Run the sequences and print what was done in them."""
    parser = argparse.ArgumentParser(prog="python -m tests.sequences")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    steps: Counter[str] = Counter()
    done: Counter[str] = Counter()
    with postgres_server() as postgres, redis_server() as redis:
        for seed in range(given.first, given.first + given.count):
            servers = {"database": postgres.url, "redis": redis.url} if seed % 2 else {}
            with tempfile.TemporaryDirectory(prefix="tailcut-sequence-") as folder:
                sequence = Sequence(Path(folder), seed, **servers)
                try:
                    sequence.run(STEPS_OF_ONE)
                except Exception:
                    done["wrong"] += 1
                    sys.stdout.write(f"seed {seed}, {', '.join(sequence.log)}\n{traceback.format_exc()}\n")
            steps += Counter(sequence.log)
            done += Counter(answers=sequence.answers, switched=sequence.switched, refused=sequence.refused)
    sys.stdout.write(f"{given.count} sequences: {dict(done)}\nsteps: {dict(steps)}\n")
    return 1 if done["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
