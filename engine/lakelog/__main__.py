"""``python -m lakelog`` is the command line."""

from lakelog.cli import main

if __name__ == "__main__":
    main()
