"""Which requests are answered, and how much of what is stored they may see.

Each request is judged in this order: its host name, its origin if it would change something, its user, and
what `authorize` says of that user. Begin with `requests`.
"""
