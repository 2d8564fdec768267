"""What `qwf --app support.host_app.wiring` imports; the test says where the revisions go."""

from __future__ import annotations

import os

from support.host_app.models import HostBase

from queue_workflows.config import HostMigrations, configure

configure(
    host_migrations=HostMigrations(
        versions=os.environ["HOST_APP_VERSIONS"],
        version_table="film_schema_version",
        metadata=HostBase.metadata,
    )
)
