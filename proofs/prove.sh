#!/bin/sh
# prove.sh - exports the work maps of all schedules and checks their proofs with Coq.
#
# Usage: BUILD=build sh proofs/prove.sh [ROOT]
#   ROOT: a folder with schedules/ of its own (default: this repository)
#
# Prints TAP, one line a theorem. A theorem counts when coqc accepts it and it rests on no axiom.
# Exit status 1 when one does not, 2 when Coq or Lua is missing.

here=$(cd "$(dirname "$0")" && pwd)
root=${1:-$here/..}
out=${BUILD:-build}/gen/proofs

for tool in coqc lua5.4; do
    if ! command -v $tool > /dev/null; then
        echo "prove: $tool is not installed; run make deps" >&2
        exit 2
    fi
done

mkdir -p "$out" || exit 2
rm -f "$out"/*.v "$out"/*.log "$out"/*.vo
cases=0
failed=0

result() { # ok|"not ok", name
    cases=$((cases + 1))
    [ "$1" = ok ] || failed=$((failed + 1))
    echo "$1 $cases - $2"
}

cp "$here/Partition.v" "$out/Partition.v"

# Compiles NAME.v; true when Coq accepts it and all of its `count` questions about assumptions
# are answered by "none".
compile() { # name, count
    (cd "$out" && coqc -q -w none -Q . Elpis "$1.v") > "$out/$1.log" 2>&1 &&
        [ "$(grep -c '^Closed under the global context' "$out/$1.log")" = "$2" ]
}

# One line a theorem of a file: those of its tuple `theorems`.
report() { # verdict, name
    for theorem in $(awk '/^Definition theorems/ { on = 1 } on { print } /\)\.$/ { on = 0 }' \
        "$out/$2.v" | sed 's/Definition theorems :=//; s/[(),]//g; s/\.$//'); do
        result "$1" "$2: $theorem"
    done
}

check() { # name
    if compile "$1" 1; then
        report ok "$1"
    else
        sed 's/^/# /' "$out/$1.log"
        report "not ok" "$1"
    fi
}

check Partition
if files=$(lua5.4 "$here/export.lua" "$out" "$root"); then
    names=$(for file in $files; do basename "$file" .v; done)
    if compile All "$(echo "$names" | wc -w)"; then # all at once, or one by one to see which
        for name in $names; do report ok "$name"; done
    else
        for name in $names; do check "$name"; done
    fi
else
    result "not ok" "the schedules export their maps"
fi
echo "1..$cases"
[ "$failed" = 0 ]
