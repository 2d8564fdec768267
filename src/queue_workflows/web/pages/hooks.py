"""Hook scripts, as the machine that serves the page has them."""

from __future__ import annotations

from queue_workflows.errors import PayloadError
from queue_workflows.views.hooks import scripts
from queue_workflows.web.page import Look, Shown, href


def hooks(look: Look) -> Shown:
    """The scripts of an event in their order, and the events that there are."""
    places = list(look.settings.hook_dirs)
    events = scripts.events_in(places) if places else []
    event = look.word("event") or (events[0] if events else "")
    if event and event not in events:
        raise PayloadError(
            f"there are no hooks of {event!r:.80}", path="event", advice=f"one of {', '.join(events)}"
        )
    found = scripts.scripts_of(event, places) if event else None
    return Shown(
        title="Hooks",
        template="hooks.html",
        command=scripts.command_of(event or "EVENT"),
        data={
            "found": found,
            "told": scripts.json_of(found) if found else [],
            "places": [str(place) for place in places],
            "events": [(one, href(look.prefix + "/hooks", event=one), one == event) for one in events],
        },
        json=scripts.json_of(found) if found else [],
        is_live=False,
    )
