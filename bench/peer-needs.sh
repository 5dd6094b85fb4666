#!/usr/bin/env bash
# The official wheel links libibverbs even without RDMA. Installs Debian's package where that is possible, else says
# what to do.
set -eu
if ldconfig -p | grep -q 'libibverbs\.so\.1'; then
  exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get install -qq -y libibverbs1 || { apt-get update -qq && apt-get install -qq -y libibverbs1; }
else
  printf 'error: libibverbs.so.1 is missing, and the official Mooncake wheel cannot be loaded without it\n\n' >&2
  printf 'hint: install it (on Debian and Ubuntu: `apt-get install libibverbs1`), then run `make bench` again\n' >&2
  exit 1
fi
