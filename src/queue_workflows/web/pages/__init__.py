"""What each address shows: a page asks the views on a reader's connection and says what it found.

A page knows nothing of HTTP and nothing of HTML: `page` has the two shapes, what it is given and what it
gives back; `all` lists every page with its address. One file for each subject of the command line.
"""
