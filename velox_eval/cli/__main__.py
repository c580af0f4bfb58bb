"""`python -m velox_eval.cli`: the command line without the installed script."""

from velox_eval.cli import main

main()
