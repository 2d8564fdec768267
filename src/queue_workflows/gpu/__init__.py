"""Models that stay loaded between jobs, and which workers should run the jobs that need them."""
