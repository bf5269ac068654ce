"""``python -m wtfarray`` runs the command ``wtfarray``."""

from wtfarray.cli import main

if __name__ == "__main__":
    main()
