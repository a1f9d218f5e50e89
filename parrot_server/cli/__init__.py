"""The command line `parrot`: one command a file, and the errors of all of them in one place.

app.py         which commands there are
serve.py, run.py, demo.py, models.py, doctor.py
engines.py     the options that say on what programs run, and a client for it
terminal.py    what is printed, and where
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Every failure is one line on stderr: exit code 2 for wrong use, 1 for all else, 130 for Ctrl-C."""
    from parrot_server.cli.app import run

    sys.exit(run(sys.argv[1:]))
