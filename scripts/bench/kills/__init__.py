"""What befalls the workers of a soak, and what became of each job."""
