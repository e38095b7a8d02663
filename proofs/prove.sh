#!/bin/sh
# prove.sh - compiles the proofs, exports the schedules, and proves what they export.
#
# Usage: BUILD=build sh proofs/prove.sh [--only laws|instances|trees] [--schedules ROOT]
#   --only PART       laws: the theories, a line a law; instances: what schedules export;
#                     trees: core/engine/tree.c against the table of Trees.v. Default: all, and
#                     the table in README.md
#   --schedules ROOT  exports ROOT/schedules instead of the repository's; with instances only
#
# Prints TAP: one line a law, and one a law and schedule. A law counts when coqc accepts it and it
# rests on no axiom. What fails is named: the law, the schedule, and the map or number. Theories
# that have not changed since they were compiled are not compiled again.
# Exit status 1 when a line is "not ok", 2 when Coq or Lua is missing or an option is wrong.

usage() {
    echo "prove: expected [--only laws|instances|trees] [--schedules ROOT], got $1" >&2
    exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
root=$here/..
only=all
while [ $# -gt 0 ]; do
    case $1 in
    --only)
        case $2 in laws | instances | trees) only=$2 ;; *) usage "--only $2" ;; esac ;;
    --schedules)
        [ -d "$2/schedules" ] || usage "--schedules $2, a folder without schedules/"
        root=$2 ;;
    *) usage "$1" ;;
    esac
    shift 2
done
[ "$root" = "$here/.." ] || only=instances

build=${BUILD:-build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
out=$build/gen/proofs
compiled=$out/theories
exported=$out/schedules
[ "$root" = "$here/.." ] || exported=$out/own
theories=$(lua5.4 "$here/table.lua" theories)

does() { # part
    [ $only = all ] || [ $only = "$1" ]
}

for tool in coqc lua5.4; do
    if ! command -v $tool > /dev/null; then
        echo "prove: $tool is not installed; run make deps" >&2
        exit 2
    fi
done

mkdir -p "$compiled" "$exported" || exit 2
cases=0
failed=0

result() { # ok|"not ok", name
    cases=$((cases + 1))
    [ "$1" = ok ] || failed=$((failed + 1))
    echo "$1 $cases - $2"
}

# Runs coqc on FOLDER/NAME.v; its words go to NAME.log.
coq() { # folder, name
    (cd "$1" && coqc -q -w none -Q "$compiled" Elpis "$2.v") > "$1/$2.log" 2>&1
}

# The line at which Coq stopped, in a log.
stopped_line() { # log
    sed -n 's/.*line \([0-9]*\), characters.*/\1/p' "$1" | head -n 1
}

# ---- the theories

# The last Theorem, Lemma, Example or Definition up to the line at which Coq stopped.
stopped_in() { # theory
    awk -v last="$(stopped_line "$compiled/$1.log")" '
        NR <= last && match($0, /(Theorem|Lemma|Example|Definition) [A-Za-z0-9_]+/) {
            name = substr($0, RSTART, RLENGTH)
        }
        END { print name }' "$compiled/$1.v"
}

# `broken`: the theories that did not compile; `stale`: some were compiled now.
stale=
broken=
for theory in $theories; do
    file=$compiled/$theory
    if [ -n "$stale" ] || ! [ -e "$file.vo" ] || ! cmp -s "$here/$theory.v" "$file.v"; then
        stale=yes
        rm -f "$file.vo"
        cp "$here/$theory.v" "$file.v"
        if ! coq "$compiled" "$theory"; then
            broken="$broken $theory"
            sed 's/^/# /' "$file.log"
            result "not ok" "laws of $theory: $(stopped_in "$theory") does not prove"
        fi
    fi
done

# ---- what the schedules export

# Whether what was asked rests on no axiom, by its log.
closed() { # name
    grep -q '^Closed under the global context' "$exported/$1.log"
}

# The mark before the line at which Coq stopped: "law L, schedule S, map M".
stopped_at() { # schedule
    awk -v last="$(stopped_line "$exported/$1.log")" '
        NR <= last && /^\(\* law / { mark = $0 }
        END { print mark }' "$exported/$1.v" | sed 's/^(\* //; s/ \*)$//'
}

# A line for each law of a schedule.
proved() { # schedule
    while read -r schedule law count; do
        [ "$schedule" = "$1" ] && result ok "law $law, schedule $schedule: $count instances"
    done < "$exported/instances"
}

check() { # schedule
    (cat "$exported/$1.v" && echo "Print Assumptions theorems.") > "$exported/One.v"
    coq "$exported" One
    cp "$exported/One.log" "$exported/$1.log"
    if closed "$1"; then
        proved "$1"
    else
        sed 's/^/# /' "$exported/$1.log"
        result "not ok" "$(stopped_at "$1"): does not prove"
    fi
}

# All at once, or, when that fails, one by one to see which.
instances() {
    if [ -n "$broken" ]; then
        result "not ok" "instances of the schedules: theories do not compile:$broken"
    elif coq "$exported" All && closed All; then
        while read -r name; do proved "$name"; done < "$exported/names"
    else
        while read -r name; do check "$name"; done < "$exported/names"
    fi
}

# ---- the laws, the table of trees, the README

# A line a law: compiled, used, and resting on no axiom.
laws() {
    if ! lua5.4 "$here/table.lua" check "$exported"; then
        result "not ok" "every theorem is a law with words, and used"
        return
    fi
    sed -n 's/^Goal True. idtac "law \([A-Za-z]*\) \([A-Za-z0-9_]*\)".*/\1 \2/p' \
        "$exported/Laws.v" > "$exported/laws"
    for theory in $broken; do
        sed -i "s/ $theory\([ .]\)/\1/; /$theory /d; / $theory\./d" "$exported/Laws.v"
    done
    coq "$exported" Laws || sed 's/^/# /' "$exported/Laws.log"
    while read -r theory law; do
        if grep -A 1 "^law $theory $law\$" "$exported/Laws.log" | grep -q '^Closed under'; then
            result ok "law $law ($theory)"
        else
            result "not ok" "law $law ($theory): expected a theorem that rests on no axiom"
        fi
    done < "$exported/laws"
}

# Coq's table, made when a theory has changed.
print_table() {
    if [ -z "$stale" ] && cmp -s "$here/TreeTable.v" "$compiled/TreeTable.v" &&
        [ -s "$compiled/tree_table.txt" ]; then
        return
    fi
    cp "$here/TreeTable.v" "$compiled/TreeTable.v"
    coq "$compiled" TreeTable
    sed 's/^\[\(.*\)\]$/\1/' "$compiled/TreeTable.log" > "$compiled/tree_table.txt"
}

# What tree.c computes of every tree, against what Trees.v says.
trees() {
    name="laws accept_longest and program_sound: core/engine/tree.c against the table of Trees.v"
    if ! (cd "$here/.." && MAKEFLAGS='' make -s BUILD="$build" "$build/proofs/tree_table") \
        > "$out/tree_table.log" 2>&1; then
        sed 's/^/# /' "$out/tree_table.log"
        result "not ok" "$name: tree_table does not build"
        return
    fi
    print_table
    "$build/proofs/tree_table" > "$out/tree_table.c.txt"
    if cmp -s "$compiled/tree_table.txt" "$out/tree_table.c.txt"; then
        result ok "$name: $(wc -l < "$out/tree_table.c.txt") trees, all match masks"
    else
        diff "$compiled/tree_table.txt" "$out/tree_table.c.txt" | head -n 4 | sed 's/^/# /'
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
        result "not ok" "$name: expected it to be made by make laws"
    fi
}

if ! lua5.4 "$here/export.lua" "$exported" "$root" > "$exported/names"; then
    result "not ok" "the schedules export their maps and claims"
    only=nothing
fi
if does laws; then laws; fi
if does instances; then instances; fi
if does trees; then trees; fi
if [ $only = all ]; then readme; fi
echo "1..$cases"
[ "$failed" = 0 ]
