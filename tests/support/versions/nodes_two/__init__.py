"""Node modules of one version of a host app."""
