"""A share in a host lock, which several processes may have at once; `share_files` says how."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from queue_workflows.host.locks.lock import HostLock
from queue_workflows.host.locks.owner_note import told
from queue_workflows.host.locks.share_files import held_shares, is_held, share_path


class LockShare(HostLock):
    """A lock that is held beside the holders that one knows, by their notes, and by no others.

    It stays held when the process that had the lock lets go of it or ends.
    """

    def __init__(
        self, name: str, *, note: str, directory: Path | None = None, deadline_s: float | None = None
    ) -> None:
        """The share of the holder with this note."""
        super().__init__(name, directory=directory, deadline_s=deadline_s, note=note)
        self._lock: Final = self.path
        self.path = share_path(self._lock, note)

    def try_share(self, beside: Collection[str]) -> bool:
        """Have a share, if all that have the lock or a share of it have one of these notes."""
        if not self.try_acquire():
            return False
        try:
            is_one_of_them = self._is_among(beside)
        except BaseException:
            self.release()
            raise
        if not is_one_of_them:
            self.release()
        return is_one_of_them

    def release(self) -> None:
        """Let go of the share, and leave no file of it."""
        with suppress(OSError):
            self.unlink_and_release()

    @property
    def is_last(self) -> bool:
        """Whether nobody else has the lock or a share in it."""
        return not is_held(self._lock) and not any(self._other_shares())

    def _is_among(self, notes: Collection[str]) -> bool:
        if is_held(self._lock):
            claim = told(self._lock)
            if claim is None or claim.note not in notes:
                return False
        known = {share_path(self._lock, note) for note in notes}
        return known.issuperset(self._other_shares())

    def _other_shares(self) -> Iterator[Path]:
        return (path for path in held_shares(self._lock) if path != self.path)
