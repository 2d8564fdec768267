"""The regression guard: is what a commit changes slower than what it was before?

`command` lays both trees out (`trees`), starts a process for each (`sides`), which measures with its tree's
package (`measures`), and lets them take turns; `verdict` says from the pairs whether the second is slower,
and how sure that is.
"""
