"""The command line: one file per command. Nothing below imports from here."""
