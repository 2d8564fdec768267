"""`python -m queue_workflows`: the same as the `qwf` command."""

from queue_workflows.cli.entry_points import main

if __name__ == "__main__":
    main()
