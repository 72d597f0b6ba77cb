"""`python -m snapline`."""

from snapline.cli.main import main

if __name__ == "__main__":
    main()
