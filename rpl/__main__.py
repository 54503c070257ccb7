"""`python -m rpl` is the `rpl` command."""

from rpl.cli.main import main

if __name__ == "__main__":
    main()
