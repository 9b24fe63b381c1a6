"""``python -m dalton.experiments`` is the program ``dalton``."""

from dalton.experiments.cli import main

main()
