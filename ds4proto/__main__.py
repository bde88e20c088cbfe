"""``python -m ds4proto`` is ``ds4proto``."""

from ds4proto.cli import main

if __name__ == "__main__":
    main()
