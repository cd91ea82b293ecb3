"""The page at /ui: what a server does now, for people; its files are in ``static`` and come from nowhere else."""
