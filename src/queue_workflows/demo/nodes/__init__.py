"""The demo's node modules: each has a `run` that a worker calls with the node's inputs."""
