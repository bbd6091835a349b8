#!/bin/sh
# install.sh DESTDIR PREFIX: program, the shipped model, man pages, shell completion, and the library: header, static and shared, pkg-config file.
set -e
h=${HYDRAHEAD:-build/hydrahead} root=$1$2
build=$(dirname "$h") man=$root/share/man/man1
mkdir -p "$root/bin" "$man" "$root/include" "$root/lib/pkgconfig" "$root/share/bash-completion/completions" \
    "$root/share/zsh/site-functions" "$root/share/fish/vendor_completions.d" "$root/share/hydrahead/models/nano"
install -m 755 "$h" "$root/bin/hydrahead"
"$h" help --man > "$man/hydrahead.1"
for verb in $("$h" help --verbs); do "$h" help --man "$verb" > "$man/hydrahead-$verb.1"; done
install -m 644 tools/completion.bash "$root/share/bash-completion/completions/hydrahead"
tools/make_completion.sh zsh > "$root/share/zsh/site-functions/_hydrahead"
tools/make_completion.sh fish > "$root/share/fish/vendor_completions.d/hydrahead.fish"
install -m 644 models/nano/* "$root/share/hydrahead/models/nano/"
install -m 644 include/hydrahead.h "$root/include/"
install -m 644 "$build/libhydrahead.a" "$root/lib/"
api=$(sed -n 's/^#define HH_API_VERSION *\([0-9]*\).*/\1/p' include/hydrahead.h)
version=$(sed -n 's/^#define HH_VERSION *"\(.*\)"/\1/p' include/hydrahead.h)
install -m 755 "$build/libhydrahead.so" "$root/lib/libhydrahead.so.$version"
ln -sf "libhydrahead.so.$version" "$root/lib/libhydrahead.so.$api"
ln -sf "libhydrahead.so.$api" "$root/lib/libhydrahead.so"
cat > "$root/lib/pkgconfig/hydrahead.pc" <<END
prefix=$2
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: hydrahead
Description: Transformers, and hybrids of full attention and Gated DeltaNet made from them
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lhydrahead
Libs.private: ${LIBS:--ldnnl -ljansson -lpcre2-8 -lutf8proc -lz -lm} -fopenmp
END
echo "installed in $root"
