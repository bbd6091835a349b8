# bash completion of hydrahead: verbs and options come from the program itself, words are files.
_hydrahead() {
    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W "$(hydrahead help --verbs 2>/dev/null) help version" -- "$word"))
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$(hydrahead help --options "$verb" 2>/dev/null)" -- "$word"))
    elif [ "$verb" = help ]; then
        COMPREPLY=($(compgen -W "$(hydrahead help --verbs 2>/dev/null)" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word") $(compgen -W nano -- "$word"))
    fi
}
complete -o filenames -F _hydrahead hydrahead
