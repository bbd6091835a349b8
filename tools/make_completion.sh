#!/bin/sh
# make_completion.sh zsh|fish: completion for that shell, on standard output, from the program's option tables (`hydrahead help --table VERB`). Bash's
# is tools/completion.bash, which asks the program while it completes.
h=${HYDRAHEAD:-build/hydrahead}
tables() { for verb in $("$h" help --verbs); do "$h" help --table "$verb"; done; }
case $1 in
zsh)
    tables | awk -F '\t' '
    function quoted(s) { gsub(/\047/, "\047\\\047\047", s); return s }
    function plain(s) { gsub(/\\/, "\\\\&", s); gsub(/\[/, "\\[", s); gsub(/\]/, "\\]", s); gsub(/:/, "\\:", s); return quoted(s) }
    BEGIN { print "#compdef hydrahead\n# Made by tools/make_completion.sh from the option tables." }
    $1 != "" { n++; verb[n] = $1; summary[n] = $2; next }
    {
        what = $5 != "" ? "(" $5 ")" : $4 == "N" || $4 == "X" ? " " : "_files"; gsub(/\|/, " ", what)
        value = $4 == "" ? "" : ":" plain($4) ":" what
        both = $3 == "" ? "\047--" $2 : "\047(-" $3 " --" $2 ")\047{-" $3 ",--" $2 "}\047"
        options[n] = options[n] " \\\n            " both "[" plain($6) "]" value "\047"
    }
    END {
        print "_hydrahead() {\n    local -a verbs\n    verbs=("
        for (i = 1; i <= n; i++) print "        \047" verb[i] ":" plain(summary[i]) "\047"
        print "        \047help:what verbs there are, and their options\047\n        \047version:the version\047\n    )"
        print "    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        return\n    fi\n    case $words[2] in"
        for (i = 1; i <= n; i++)
            print "    " verb[i] ")\n        _arguments" options[i] " \\\n            \047--help[what it does, and its options]\047 \047*:file:_files\047\n        ;;"
        print "    help) (( CURRENT == 3 )) && _describe verb verbs ;;\n    esac\n}\n_hydrahead \"$@\""
    }' ;;
fish)
    tables | awk -F '\t' '
    function quoted(s) { gsub(/\\/, "\\\\&", s); gsub(/\047/, "\\\\&", s); return "\047" s "\047" }
    BEGIN {
        print "# Made by tools/make_completion.sh from the option tables."
        first = "complete -c hydrahead -f -n __fish_use_subcommand -a "
        print first "help -d \047what verbs there are, and their options\047\n" first "version -d \047the version\047"
    }
    $1 != "" { verb = $1; print first verb " -d " quoted($2); next }
    {
        choices = $5; gsub(/\|/, " ", choices)
        print "complete -c hydrahead -n \047__fish_seen_subcommand_from " verb "\047 -l " $2 ($3 == "" ? "" : " -s " $3) \
            ($4 == "" ? "" : $5 != "" ? " -x -a " quoted(choices) : " -r") " -d " quoted($6)
    }' ;;
*)
    echo "make_completion.sh zsh|fish" >&2
    exit 2 ;;
esac
