"""How often each item was sold."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from shop.database import Order, sessions


async def run(_inputs: dict[str, Any]) -> dict[str, Any]:
    """The items and their counts, for the steps after this one."""
    async with sessions() as session:
        rows = await session.execute(
            select(Order.item, func.count()).group_by(Order.item).order_by(Order.item)
        )
        return {"sold": [{"item": item, "count": count} for item, count in rows]}
