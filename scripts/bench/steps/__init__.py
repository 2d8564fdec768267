"""Functions of ten steps, as this engine and its peers have them; each module is a worker and its producer.

`python -m bench.steps.NAME prepare|fill|work DSN [COUNT]`; those of peers run without any of our packages.
"""
