"""From what a page says to what a browser gets: HTML, JSON as the command prints it, or a refusal.

Everything that came from a row is text until the last moment: templates escape all of it. Begin with
`templates`; `texts` is the one catalogue of what the page says in its own words, but for what is said around
a value, which its template has.
"""
