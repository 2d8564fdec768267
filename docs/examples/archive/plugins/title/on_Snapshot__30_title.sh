#!/bin/sh
# The title of the page, as a tag and as the result.
title=$(tr -d '\n' < ../fetch/page.html | sed -n 's/.*<title>\([^<]*\)<\/title>.*/\1/p' | sed 's/["\\]//g')
printf '%s\n' "$title" > title.txt
printf '{"type": "Result", "status": "succeeded", "output_str": "%s"}\n' "$title"
