"""``python -m tfmp``."""

from tfmp.cli import main

if __name__ == "__main__":
    main()
