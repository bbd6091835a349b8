#!/bin/sh
# Writes src/data/ruler_lists.c from src/data/words/*.txt: trailing blanks off, each word once, in the order of their bytes with '-' behind
# (the order in which RULER's sorted "adjective-noun" keys stand).
cd "$(dirname "$0")/.." || exit 1
{
    echo "/* Made by tools/make_word_lists.sh from src/data/words/ (MIT, see LICENSE there): wonderwords' adjectives and nouns. */"
    echo '#include "data/ruler_words.h"'
    echo '/* clang-format off */'
    for list in adjectives nouns; do
        suffix=; [ $list = adjectives ] && suffix=-
        sed 's/[[:space:]]*$//' src/data/words/$list.txt | sed "s/\$/$suffix/" | LC_ALL=C sort -u | awk -v list=$list '
            BEGIN { line = "   " }
            { w = " \"" $0 "\","; if (length(line w) > 120) { body = body line "\n"; line = "   " } line = line w; n++ }
            END { printf "\nconst int hh_ruler_n_%s = %d;\nconst char *const hh_ruler_%s[] = {\n%s%s\n};\n", list, n, list, body, line }'
    done
} > src/data/ruler_lists.c
