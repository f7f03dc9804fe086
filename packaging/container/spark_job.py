"""The program of a SparkApplication: its arguments are those of `holdfast`."""

import sys

from holdfast.apps.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
