"""Whether code that is about to be deployed fits what is queued, held, scheduled, parked and running.

    what this process knows by name ──┐
                                      ├──> findings: what would break, what would change
    what the database has open ───────┘

`check` puts the parts together: `tasks`, `modules` and `declarations` each compare one kind of name, and
`durable` the versions of functions. Nothing is changed. Begin with `findings`, which says what a finding is.
"""
