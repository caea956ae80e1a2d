"""``python -m streamkm``: the command line without the script on the path. Imports cli alone."""

from streamkm.cli.main import main

if __name__ == "__main__":
    main()
