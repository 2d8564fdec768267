"""How often each item was sold."""

from typing import Any

from django.db.models import Count

from shop.models import Order


def run(_inputs: dict[str, Any]) -> dict[str, Any]:
    """The items and their counts, for the steps after this one."""
    sold = Order.objects.values("item").annotate(count=Count("id")).order_by("item")
    return {"sold": list(sold)}
