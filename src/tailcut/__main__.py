"""``python -m tailcut`` is the command ``tailcut``."""

from tailcut.cli.app import main

if __name__ == "__main__":
    main()
