"""The operating system: machine facts, CPU time of threads, atomic files and locks."""
