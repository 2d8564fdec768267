#!/bin/sh
# A page that names everything that was kept of the page.
{
    echo "<!DOCTYPE html><meta charset=\"utf-8\"><title>$(cat ../title/title.txt)</title><ul>"
    find .. -path ../.output -prune -o -path ../index -prune -o -type f -print | sort | while read -r file; do
        echo "<li><a href=\"$file\">$file</a></li>"
    done
    echo "</ul>"
} > index.part
mv index.part index.html
printf '{"type": "Result", "status": "succeeded", "output_str": "index.html"}\n'
