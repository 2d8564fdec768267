"""What runs a claimed job and decides how it ends; the SQL of both lies in `repositories`."""
