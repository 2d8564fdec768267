<%
    def docstring(text):
        """What a shell hands in may hold quotes, backslashes and worse; the file has to parse all the same."""
        shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text.replace("\\", "\\\\"))
        return shown.replace('"""', '\\"\\"\\"')
%>\
"""${docstring(message if message.endswith(".") else message + ".")}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
% if imports:
${imports}
% endif

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
