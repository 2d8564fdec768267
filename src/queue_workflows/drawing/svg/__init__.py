"""Pictures for the operator's page: graphs, timelines, charts and maps as SVG, drawn without a browser.

Each module takes plain values and returns one `<svg>` as text. A page's policy allows neither inline styles
nor scripts, so a picture has classes only, and `web/static/qwf.css` says what they look like; widths are
shares of the page's, so that text is never scaled. Every text of a user goes through `markup.text_of`. A
state has one shape and one tone, both in `looks`; `icons` draws it alone, and the patterns of waiting are in
`hatches`. Begin with `looks`, then `graph`.
"""
