"""`manage.py qwf`."""
