#!/bin/sh
# Tests open the pages in Chromium. Installs it where we may, else says what to install; tests that need it then fail and say so.
for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
  command -v "$name" >/dev/null && exit 0
done
[ -n "$CCLF_BROWSER" ] && exit 0
if [ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing chromium for the tests of pages"
  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null && exit 0
fi
echo "the tests of pages need Chromium: please install it, or name one in CCLF_BROWSER" >&2
exit 0
