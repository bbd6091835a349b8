#!/bin/sh
# make_arm_root.sh FOLDER PACKAGE...: Debian's C library and the packages for 64-bit ARM, unpacked into FOLDER for the cross compiler and the
# emulator; nothing in there is run or installed. A folder that has them is left as it is.
root=$1
shift
have=$root/.packages
[ "$(cat "$have" 2>/dev/null)" = "$*" ] && exit 0
if [ -e "$root" ] && [ ! -e "$have" ]; then
    echo "$root is there, but not by this script; remove it or choose another ARM_ROOT" >&2
    exit 1
fi
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing: it unpacks Debian's libraries for ARM" >&2; exit 1; }
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}") # the cross compiler's C library is not newer than that
echo "unpacking Debian $release's libraries for ARM into $root (about 100 MB)" >&2
rm -rf "$root"
mmdebstrap --quiet --architectures=arm64 --variant=extract --include="libc6-dev $*" "$release" "$root" || {
    rm -rf "$root"
    exit 1
}
echo "$*" >"$have"
