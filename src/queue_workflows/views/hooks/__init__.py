"""Hooks as an operator sees them, as far as the database knows: what they said, and programs they need."""
