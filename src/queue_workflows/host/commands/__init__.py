"""Commands that are not ours, none of which outlives the process that wanted them.

    worker: `client` ──> `spawner` ──> `keeper` ──> the command, in its own cgroup where there are `cgroups`

The spawner is small, so that a fork is cheap and a killed worker's commands have a parent that ends them;
`orphans` ends what is left when all of these were killed at once. Begin with `keeper`.
"""
