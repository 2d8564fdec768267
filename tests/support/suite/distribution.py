"""How the processes of a run share its tests: by file, and so that the end of a process is no more than that.

xdist's own gives a test that ended its process to the next one, and to the next; and a process that replaces
another gets one unit of work, which it does not begin while it holds no second test.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FileScheduling(LoadFileScheduling):
    """xdist's own, without those two."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Share out again what the process had before it, without the test that it was at."""
        workload = self.assigned_work.pop(node)
        at = next((test for unit in workload.values() for test, is_over in unit.items() if not is_over), None)
        for unit in workload.values():
            if at in unit:
                unit[at] = True
        self.workqueue.update({name: unit for name, unit in workload.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return at

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process that runs short two tests at least, or tell it that no more will come."""
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._has_under_two(node):
            self._assign_work_unit(node)
        if not self.workqueue and self._has_under_two(node):
            node.shutdown()

    def _has_under_two(self, node: WorkerController) -> bool:
        return self._pending_of(self.assigned_work[node]) < 2
