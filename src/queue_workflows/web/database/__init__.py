"""The page's few connections, whatever the number of tabs.

Three threads read, each on one connection that it keeps, read-only and within a second; two threads write
for the acts. A page asks by handing a function to them. Begin with `readers`.
"""
