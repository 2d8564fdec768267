"""The grammar of filters: `queue:fetch status:failed error:"timed out" newer:1d`.

A filter is words of a key and a value; the keys are the names of the command line's options. `grammar` cuts
a text into words and writes them back, `jobs` and `runs` make the filters of the repositories of them,
`spans` reads lengths of time and `labels` what runs are labelled with. Begin with `jobs`.
"""
