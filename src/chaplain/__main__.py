"""`python -m chaplain` runs the same command line as the program `chaplain`."""

from chaplain.cli.main import main

if __name__ == "__main__":
    main()
