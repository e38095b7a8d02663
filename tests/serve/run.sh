#!/bin/sh
# Serves MODEL with PROGRAM on a free port and runs the suites in *.test.js against it.
# usage: tests/serve/run.sh PROGRAM MODEL [OPTION of elpis serve...]
# Prints TAP; the exit status is that of the suites. Needs node and npm.
set -u
program=$1 model=$2
shift 2
here=$(dirname "$0")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/elpis-serve.XXXXXX")
server=

finish() {
    status=$?
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        kill "$server"
        wait "$server"
    fi
    rm -rf "$scratch"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

fail() {
    echo "$1"
    sed 's/^/# /' "$scratch/log"
    exit 1
}

if [ ! -d "$here/node_modules/openai" ]; then
    (cd "$here" && npm ci --no-audit --no-fund) >"$scratch/log" 2>&1 ||
        fail "not ok 1 - npm could not install the openai client"
fi

printf 'test-key' >"$scratch/key"
chmod 600 "$scratch/key"
"$program" serve "$model" --listen 127.0.0.1:0 --key-file "$scratch/key" "$@" \
    >"$scratch/log" 2>&1 &
server=$!

tenths=0
until url=$(sed -n 's/^listening on //p' "$scratch/log") && [ -n "$url" ]; do
    kill -0 "$server" 2>/dev/null || fail "not ok 1 - the server ended before it listened"
    tenths=$((tenths + 1))
    [ "$tenths" -lt 300 ] || fail "not ok 1 - the server did not listen within 30 seconds"
    sleep 0.1
done

cd "$here" || exit 1
ELPIS_URL=$url ELPIS_KEY=test-key ELPIS_MODEL=$(basename "$model") \
    node --test --test-reporter=tap *.test.js
status=$?
[ "$status" -eq 0 ] || sed 's/^/# /' "$scratch/log"

kill "$server"
wait "$server"
ended=$?
server=
if [ "$ended" -eq 0 ]; then
    echo "ok - the server drained and ended"
else
    echo "not ok - the server ended with status $ended"
    status=1
fi
exit "$status"
