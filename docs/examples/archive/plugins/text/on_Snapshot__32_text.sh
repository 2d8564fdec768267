#!/bin/sh
# The words of the page.
sed -e 's/<[^>]*>/ /g' -e 's/&amp;/\&/g' ../fetch/page.html | tr -s ' \n' '\n' > text.txt
printf '{"type": "Result", "status": "succeeded", "output_str": "text.txt"}\n'
