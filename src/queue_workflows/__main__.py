"""`python -m queue_workflows`: the same as the `qwf` command."""

from queue_workflows.cli.starting import main

if __name__ == "__main__":
    main()
