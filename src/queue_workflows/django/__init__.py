"""A Django app: `queue_workflows.django` in INSTALLED_APPS, and a project has all of this package.

The database is Django's own, also in a test (`database`); `manage.py migrate` makes our tables before those
of the project, the `tasks` modules of all apps are imported, and each job begins with connections that are
alive (`apps`). `manage.py qwf` is the command line, `wiring` is what its processes import, and `asgi` has the
operator's page beside the project. Begin with `apps`. Nothing outside this folder imports Django.
"""
