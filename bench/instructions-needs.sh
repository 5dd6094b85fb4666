#!/usr/bin/env bash
# Instructions are counted by valgrind. Installs Debian's package where that is possible; where it is not, the counting
# itself says so and is skipped.
set -u
command -v valgrind >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get install -qq -y valgrind >/dev/null || { apt-get update -qq && apt-get install -qq -y valgrind >/dev/null; }
fi
exit 0
