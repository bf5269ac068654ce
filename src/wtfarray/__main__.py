"""``python -m wtfarray`` is the command ``wtfarray``."""

from wtfarray.cli import main

if __name__ == "__main__":
    main()
