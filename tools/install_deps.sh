#!/bin/sh
# Installs the Debian packages named as arguments that are missing: with apt as root or through sudo, else prints the line to run.
# Where there is no dpkg the packages are somebody else's affair.
command -v dpkg-query >/dev/null || exit 0
missing=
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ]; then run=; elif sudo -n true 2>/dev/null; then run=sudo; else
    echo "hydrahead needs these Debian packages; run:  sudo $install" >&2
    exit 1
fi
echo "installing:$missing" >&2
$run apt-get update -q >/dev/null && $run env DEBIAN_FRONTEND=noninteractive $install >/dev/null || {
    echo "apt could not install them; run:  sudo $install" >&2
    exit 1
}
