_t7bridge() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "convert diff draw export inspect lua match module prove scan verify zoo describe completion help --help --version" -- "$word"))
        return
    fi
    if [ "${word#-}" != "$word" ]; then
        case "$verb" in
            convert) COMPREPLY=($(compgen -W "-h --help --help-all --to --force --rename --strip --dtype --encoding --byte-order --long-size --keep-device --no-record --pt-format --compact --strict --allow-foreign --classes --limit --mode --as --at --shard-size --no-config --map-location --nested --template --partial --sync --json -q --quiet" -- "$word")) ;;
            diff) COMPREPLY=($(compgen -W "-h --help --help-all --rtol --atol --json --limit -q --quiet" -- "$word")) ;;
            draw) COMPREPLY=($(compgen -W "-h --help --help-all -o --output --at --weights --input-shape --input --force --json --limit -q --quiet" -- "$word")) ;;
            export) COMPREPLY=($(compgen -W "-h --help --help-all --input --output-name --dynamic --at --index-base --force --json --limit -q --quiet" -- "$word")) ;;
            inspect) COMPREPLY=($(compgen -W "-h --help --help-all --at --all --depth --items --stats --input-shape --input --json --limit -q --quiet" -- "$word")) ;;
            lua) COMPREPLY=($(compgen -W "-h --help --help-all --allow --inference --force --sync -o --output --input --loader --train --json -q --quiet" -- "$word")) ;;
            match) COMPREPLY=($(compgen -W "-h --help --help-all -o --rename --strip --force --dtype --compact --strict --sync --partial --map --order --at --target-at --among --module --no-run --input --prove --json --limit -q --quiet" -- "$word")) ;;
            module) COMPREPLY=($(compgen -W "-h --help --help-all -o --output --at --index-base --no-lift --force --strict --sync --classes --prove --json --limit -q --quiet" -- "$word")) ;;
            prove) COMPREPLY=($(compgen -W "-h --help --help-all --at --input --shape --expect --with --module --all --json --limit -q --quiet" -- "$word")) ;;
            scan) COMPREPLY=($(compgen -W "-h --help --help-all --json --limit -q --quiet" -- "$word")) ;;
            verify) COMPREPLY=($(compgen -W "-h --help --help-all --independent --compact --quick --json --limit -q --quiet" -- "$word")) ;;
            zoo) COMPREPLY=($(compgen -W "-h --help --help-all --to --force --rename --strip --dtype --encoding --byte-order --long-size --keep-device --no-record --pt-format --compact --strict --allow-foreign --classes --limit -o --output --mode --as --index-base --module --draw --prove --verify --engine --workers --scheduler --timeout --memory --retry-failed --dry-run --include --max-files --json -q --quiet" -- "$word")) ;;
            describe) COMPREPLY=($(compgen -W "-h --help --help-all --limit -q --quiet" -- "$word")) ;;
            completion) COMPREPLY=($(compgen -W "-h --help --help-all -q --quiet" -- "$word")) ;;
        esac
        return
    fi
    case "$verb $before" in
        "convert --to") COMPREPLY=($(compgen -W "t7 npz pt safetensors hdf5" -- "$word")); return ;;
        "convert --dtype") COMPREPLY=($(compgen -W "float16 bfloat16 float32" -- "$word")); return ;;
        "convert --encoding") COMPREPLY=($(compgen -W "binary ascii" -- "$word")); return ;;
        "convert --byte-order") COMPREPLY=($(compgen -W "little big" -- "$word")); return ;;
        "convert --long-size") COMPREPLY=($(compgen -W "4 8" -- "$word")); return ;;
        "convert --pt-format") COMPREPLY=($(compgen -W "zip legacy torchscript" -- "$word")); return ;;
        "convert --mode"|"convert --as") COMPREPLY=($(compgen -W "auto tree" -- "$word")); return ;;
        "export --index-base") COMPREPLY=($(compgen -W "0 1" -- "$word")); return ;;
        "match --dtype") COMPREPLY=($(compgen -W "float16 bfloat16 float32" -- "$word")); return ;;
        "module --index-base") COMPREPLY=($(compgen -W "0 1" -- "$word")); return ;;
        "zoo --to") COMPREPLY=($(compgen -W "t7 npz pt safetensors hdf5" -- "$word")); return ;;
        "zoo --dtype") COMPREPLY=($(compgen -W "float16 bfloat16 float32" -- "$word")); return ;;
        "zoo --encoding") COMPREPLY=($(compgen -W "binary ascii" -- "$word")); return ;;
        "zoo --byte-order") COMPREPLY=($(compgen -W "little big" -- "$word")); return ;;
        "zoo --long-size") COMPREPLY=($(compgen -W "4 8" -- "$word")); return ;;
        "zoo --pt-format") COMPREPLY=($(compgen -W "zip legacy torchscript" -- "$word")); return ;;
        "zoo --mode"|"zoo --as") COMPREPLY=($(compgen -W "auto tree" -- "$word")); return ;;
        "zoo --index-base") COMPREPLY=($(compgen -W "0 1" -- "$word")); return ;;
        "zoo --engine") COMPREPLY=($(compgen -W "local dask" -- "$word")); return ;;
        "completion completion") [ "${word#-}" = "$word" ] && COMPREPLY=($(compgen -W "bash zsh fish" -- "$word")) ;;
    esac
    [ "$verb" = help ] && COMPREPLY=($(compgen -W "convert diff draw export inspect lua match module prove scan verify zoo describe completion" -- "$word"))
}
complete -o default -F _t7bridge t7bridge
