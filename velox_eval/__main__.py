"""`python -m velox_eval` is the command line."""

from velox_eval.cli import main

if __name__ == "__main__":
    main()
