"""What the page says in its own words, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queue_workflows.repositories.durable.waits import ASLEEP, CHILDREN, EVENT


@dataclass(frozen=True)
class Section:
    """An entry of the menu: its address, its name, and the letter that goes there after `g`."""

    name: str
    path: str
    label: str
    letter: str


SECTIONS: Final = (
    Section("overview", "/", "Overview", "o"),
    Section("queues", "/queues", "Queues", "q"),
    Section("jobs", "/jobs", "Jobs", "j"),
    Section("failures", "/failures", "Failures", "f"),
    Section("runs", "/runs", "Runs", "r"),
    Section("workflows", "/workflows", "Workflows", "t"),
    Section("workers", "/workers", "Workers", "w"),
    Section("hosts", "/hosts", "Hosts", "h"),
    Section("models", "/models", "Models", "m"),
    Section("limits", "/limits", "Limits", "l"),
    Section("rates", "/rates", "Rates", "e"),
    Section("schedules", "/schedules", "Schedules", "s"),
    Section("hooks", "/hooks", "Hooks", "k"),
    Section("binaries", "/binaries", "Programs", "b"),
    Section("audit", "/audit", "Audit log", "a"),
    Section("doctor", "/doctor", "Doctor", "d"),
)

# What the macros say, on every page that uses them.
SINCE: Final = "since"
UNTIL: Final = "until"
ON: Final = "on"
OF: Final = "of"
HELD: Final = "held:"
# What is said of a durable function instead, by what it waits for.
WAITS: Final[Mapping[str, str]] = {
    ASLEEP: "asleep",
    EVENT: "waits for the event {key}",
    CHILDREN: "waits for children: {key}",
}
FURTHER: Final = "Further"
NEWER: Final = "← newer"
OLDER: Final = "older →"
SEARCH_FURTHER: Final = "search further →"
SEARCHED_BACK_TO: Final = "searched back to"
IN_A_TERMINAL: Final = "In a terminal"
COMMAND: Final = "Command"
COPY: Final = "copy"
TRY: Final = "Try"
FILTER: Final = "Filter"
TAKEN_OUT: Final = "taken out by a click"
VIEWS: Final = "Views"
PICK: Final = "Pick"
PICK_ALL: Final = "Pick all rows"
OF_WHICH_KEY: Final = "of which key"
TRIES: Final = "Tries"
TOOK: Final = "Took"
JOB_TITLES: Final = ("Job", "State", "Queue", "What", "Enqueued", TOOK, TRIES, "Note")
WHY: Final = "Why it stands where it does"
HOW_IT_ENDED: Final = "How it ended"
HISTORY: Final = "History"
DONE_BY_OPERATORS: Final = "What operators did"
AUDIT_LOG: Final = "Audit log"
AUDIT_TITLES: Final = ("When", "User", "Act", "Reason")

STEPS: Final = "Steps"
PLACE: Final = "Place"
STEP_TITLES: Final = (PLACE, "Step", "State", "Began", TOOK, "Came to")
FOR: Final = "for"
FOR_THE_EVENT: Final = "for the event"

TOO_BROAD: Final = "This filter is too broad"
TOO_BROAD_ADVICE: Final = (
    "The database was at it for longer than a page may take. "
    "Narrow it: name a queue, a status, or how new it has to be."
)
TOO_DEEP: Final = "A value of it is nested too deeply to be read"
TOO_DEEP_ADVICE: Final = "It is no value that the engine would have stored: look at the row by SQL."
AWAY: Final = "The database is away"
AWAY_ADVICE: Final = "This page looks again by itself, every few seconds."
NOT_HERE: Final = "There is no such page"
GONE_ADVICE: Final = (
    "It may have been pruned: jobs and runs that ended are kept for as long as QWF_RETENTION says."
)
LOCKED: Final = "Somebody else is at one of these rows"
LOCKED_ADVICE: Final = "It was given up after some seconds; try again in a moment."
SIGNED_OUT: Final = "You are not signed in"
SIGNED_OUT_ADVICE: Final = (
    "Open the address that `qwf web` or `qwf up` printed when it started; its token is good once. "
    "For another browser `qwf web --link` prints one, in the directory where the page is served."
)
SENT_BY_NOBODY: Final = "This was sent by nobody that is known here"
SENT_BY_NOBODY_ADVICE: Final = (
    "Send the header Authorization that `qwf web --mcp` printed when it started, or what this application "
    "knows its users by."
)
DENIED: Final = "You may not see this"
ACT_DENIED: Final = "You may not do this"
ELSEWHERE: Final = "This did not come from this page"
ELSEWHERE_ADVICE: Final = "Go back to the page and press the button there."
UNKNOWN_HOST: Final = "This page does not answer to that name"
NO_NUL: Final = "There is a NUL in this address, which no text here has"
WISH_OF_WORKER: Final = (
    "A wish is of a host and a queue: it is for every worker of {place}, not for {worker} alone."
)
MEMORY_NOT_REPORTED: Final = "memory not reported"
READ_ONLY: Final = "This page is read-only"
FAILED: Final = "Something unforeseen went wrong"
FAILED_ADVICE: Final = "The log of the program that serves this page says where."
