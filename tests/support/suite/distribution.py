"""How the processes of a run share its tests: by file, because each file has a database of its own.

The files that `order` names are shared out test by test. The end of a process is no more than that, while by
xdist's own scheduling the test that ended it would be given to the next one, and to the next; and a process
that replaces another would get one unit of work, which it does not begin while it holds no second test.
"""

from __future__ import annotations

from support.suite.order import APART
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FileScheduling(LoadFileScheduling):
    """xdist's own for files, with these differences."""

    def _split_scope(self, nodeid: str) -> str:
        """The name of the unit of work that a test belongs to."""
        file = nodeid.split("::", 1)[0]
        return nodeid if file.rpartition("/")[2] in APART else file

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
        """See to it that a process has a test behind the one that it is at, and no long one in reserve."""
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()
