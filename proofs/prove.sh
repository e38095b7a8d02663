#!/bin/sh
# prove.sh - compiles the proofs, exports the schedules, and proves what they export.
#
# Usage: BUILD=build sh proofs/prove.sh [--instances ROOT]
#   --instances ROOT  only what the schedules in ROOT/schedules export
#
# Prints TAP, one line a law, and a line a law and schedule. A law counts when coqc accepts it and it
# rests on no axiom. What fails is named: the law, the schedule and the map or number.
# Theories that have not changed since they were compiled are not compiled again.
# Exit status 1 when a line is "not ok", 2 when Coq or Lua is missing.

here=$(cd "$(dirname "$0")" && pwd)
root=$here/..
only_instances=
if [ "$1" = --instances ]; then
    root=${2:?usage: prove.sh [--instances ROOT]}
    only_instances=yes
fi
case ${BUILD:-build} in /*) out=${BUILD}/gen/proofs ;; *) out=$PWD/${BUILD:-build}/gen/proofs ;; esac
theories="Formula Partition Spans Exact Trees Speculation Waits"

for tool in coqc lua5.4; do
    if ! command -v $tool > /dev/null; then
        echo "prove: $tool is not installed; run make deps" >&2
        exit 2
    fi
done

mkdir -p "$out/theories" || exit 2
exported=$out/schedules
[ -n "$only_instances" ] && exported=$out/own
rm -rf "$exported" && mkdir -p "$exported" || exit 2
cases=0
failed=0

result() { # ok|"not ok", name
    cases=$((cases + 1))
    [ "$1" = ok ] || failed=$((failed + 1))
    echo "$1 $cases - $2"
}

# Runs coqc on FOLDER/NAME.v; its words go to NAME.log.
coq() { # folder, name
    (cd "$1" && coqc -q -w none -Q "$out/theories" Elpis "$2.v") > "$1/$2.log" 2>&1
}

# The theories that did not compile are listed in `broken`, each with Coq's words.
stale=
broken=
for theory in $theories; do
    file=$out/theories/$theory
    if [ -n "$stale" ] || ! [ -e "$file.vo" ] || ! cmp -s "$here/$theory.v" "$file.v"; then
        stale=yes
        rm -f "$file.vo"
        cp "$here/$theory.v" "$file.v"
        if ! coq "$out/theories" "$theory"; then
            broken="$broken $theory"
            line=$(sed -n 's/.*line \([0-9]*\), characters.*/\1/p' "$file.log" | head -n 1)
            name=$(awk -v last="${line:-0}" 'NR <= last && match($0,
                /(Theorem|Lemma|Example|Definition) [A-Za-z0-9_]+/) { name = substr($0, RSTART, RLENGTH) }
                END { print name }' "$file.v")
            sed 's/^/# /' "$file.log"
            result "not ok" "law of $theory: $name does not prove"
        fi
    fi
done

# ---- what the schedules export

# Answers "Closed under the global context" in a log.
closed() { # log
    grep -c '^Closed under the global context' "$1"
}

# The mark before the line at which Coq stopped: "law L, schedule S, map M".
stopped_at() { # folder, name
    line=$(sed -n 's/.*line \([0-9]*\), characters.*/\1/p' "$1/$2.log" | head -n 1)
    awk -v last="${line:-0}" 'NR <= last && /^\(\* law / { mark = $0 } END { print mark }' "$1/$2.v" |
        sed 's/^(\* //; s/ \*)$//'
}

report() { # verdict, schedule
    while read -r schedule law count; do
        [ "$schedule" = "$2" ] && result "$1" "law $law, schedule $schedule: $count instances"
    done < "$exported/instances"
}

check() { # schedule
    if coq "$exported" "$1" && [ "$(closed "$exported/$1.log")" = 1 ]; then
        report ok "$1"
        return
    fi
    sed 's/^/# /' "$exported/$1.log"
    result "not ok" "$(stopped_at "$exported" "$1"): does not prove"
}

needed=0
for theory in Formula Partition Spans Exact Trees Waits; do
    case " $broken " in *" $theory "*) needed=1 ;; esac
done
if ! lua5.4 "$here/export.lua" "$exported" "$root" > "$exported/names"; then
    result "not ok" "the schedules export their maps and claims"
elif [ $needed = 1 ]; then
    result "not ok" "instances of the schedules: their theories do not compile"
elif coq "$exported" All && [ "$(closed "$exported/All.log")" = "$(wc -l < "$exported/names")" ]; then
    while read -r name; do report ok "$name"; done < "$exported/names"
else # one by one, to see which
    while read -r name; do check "$name"; done < "$exported/names"
fi

# ---- the laws, the table of trees, the README

# A line a law: compiled, and closed.
laws() {
    if ! lua5.4 "$here/table.lua" check "$exported"; then
        result "not ok" "every theorem is a law with words, and used"
        return
    fi
    if ! coq "$exported" Laws; then
        sed 's/^/# /' "$exported/Laws.log"
    fi
    sed -n 's/^Goal True. idtac "law \([A-Za-z]*\) \([A-Za-z0-9_]*\)".*/\1 \2/p' "$exported/Laws.v" \
        > "$exported/laws"
    while read -r theory law; do
        if grep -A 1 "^law $theory $law\$" "$exported/Laws.log" | grep -q '^Closed under'; then
            result ok "law $law ($theory)"
        else
            result "not ok" "law $law ($theory): expected a theorem that rests on no axiom"
        fi
    done < "$exported/laws"
}

# What tree.c computes of every tree, against what Trees.v says.
trees() {
    name="law accept_longest and program_sound: core/engine/tree.c computes the table of Trees.v"
    if ! (cd "$here/.." && MAKEFLAGS= make -s BUILD="${out%/gen/proofs}" \
        "${out%/gen/proofs}/proofs/tree_table") > "$out/tree_table.log" 2>&1; then
        sed 's/^/# /' "$out/tree_table.log"
        result "not ok" "$name: tree_table does not build"
        return
    fi
    if [ -n "$stale" ] || ! cmp -s "$here/TreeTable.v" "$out/theories/TreeTable.v" ||
        ! [ -s "$out/theories/tree_table.txt" ]; then
        cp "$here/TreeTable.v" "$out/theories/TreeTable.v"
        coq "$out/theories" TreeTable
        sed 's/^\[\(.*\)\]$/\1/' "$out/theories/TreeTable.log" > "$out/theories/tree_table.txt"
    fi
    "${out%/gen/proofs}/proofs/tree_table" > "$out/tree_table.c.txt"
    if cmp -s "$out/theories/tree_table.txt" "$out/tree_table.c.txt"; then
        result ok "$name ($(wc -l < "$out/tree_table.c.txt") trees, all match masks)"
    else
        diff "$out/theories/tree_table.txt" "$out/tree_table.c.txt" | head -n 4 | sed 's/^/# /'
        result "not ok" "$name: they differ"
    fi
}

readme() {
    name="proofs/README.md has the table of these laws"
    if lua5.4 "$here/table.lua" readme "$exported" > "$out/README.md" &&
        cmp -s "$out/README.md" "$here/README.md"; then
        result ok "$name"
    else
        diff "$here/README.md" "$out/README.md" | head -n 6 | sed 's/^/# /'
        result "not ok" "$name: run make laws"
    fi
}

if [ -z "$only_instances" ]; then
    laws
    case " $broken " in *" Trees "*) ;; *) trees ;; esac
    readme
fi
echo "1..$cases"
[ "$failed" = 0 ]
