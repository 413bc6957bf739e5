"""`python -m ggmlpy …` is `ggmlpy …`."""

from ggmlpy.cli import main

if __name__ == "__main__":
    main()
