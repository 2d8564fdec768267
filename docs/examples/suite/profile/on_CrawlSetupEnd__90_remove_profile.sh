#!/bin/sh
# What a browser keeps of a page that it has left behind is nothing to keep.
rm -rf -- "$CHROME_USER_DATA_DIR"
