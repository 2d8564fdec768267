"""Models that stay loaded between jobs, and who should run what needs them."""
