"""The shop's tables."""

from django.db import models


class Order(models.Model):
    """What somebody bought."""

    item = models.TextField()
    email = models.EmailField()
    receipt = models.TextField(null=True)
