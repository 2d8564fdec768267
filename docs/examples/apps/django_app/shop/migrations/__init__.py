"""The shop's own migrations, as `manage.py makemigrations` writes them."""
