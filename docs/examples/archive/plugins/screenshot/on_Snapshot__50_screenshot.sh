#!/bin/sh
# A picture of the page, where there is a browser: binaries.jsonl says that this hook is skipped without one.
# Several may run at once, so each has a profile of its own.
set -e
for argument in "$@"; do
    case "$argument" in --url=*) url=${argument#--url=} ;; esac
done
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
rm -f page.png "$profile/page.png"
"$CHROMIUM_BINARY" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --user-data-dir="$profile/data" --screenshot="$profile/page.png" "$url" >&2
mv "$profile/page.png" page.png
printf '{"type": "Result", "status": "succeeded", "output_str": "page.png"}\n'
