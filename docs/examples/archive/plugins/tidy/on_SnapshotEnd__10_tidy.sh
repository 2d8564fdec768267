#!/bin/sh
# When all is done, also what ran beside the steps.
find .. -name '*.part' -delete
printf '{"type": "Result", "status": "succeeded"}\n'
