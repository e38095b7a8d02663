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

# Compiles one file whose last lines define the tuple `theorems` and print its assumptions.
check() {
    name=$(basename "$1" .v)
    if (cd "$out" && coqc -q -Q . Elpis "$name.v") > "$out/$name.log" 2>&1 &&
        grep -q '^Closed under the global context' "$out/$name.log"; then
        verdict=ok
    else
        verdict="not ok"
        sed 's/^/# /' "$out/$name.log"
    fi
    for theorem in $(awk '/^Definition theorems/ { on = 1 } on { print } /\)\.$/ { on = 0 }' \
        "$out/$name.v" | sed 's/Definition theorems :=//; s/[(),]//g; s/\.$//'); do
        result "$verdict" "$name: $theorem"
    done
}

check "$out/Partition.v"
if files=$(lua5.4 "$here/export.lua" "$out" "$root"); then
    for file in $files; do
        check "$file"
    done
else
    result "not ok" "the schedules export their maps"
fi
echo "1..$cases"
[ "$failed" = 0 ]
