"""Each rank: the checks of the programs that are named, in one job: importing takes longer."""

import importlib
import sys

import truth

if __name__ == "__main__":
    truth.run(*(check for name in sys.argv[1:] for check in importlib.import_module(name).CHECKS))
