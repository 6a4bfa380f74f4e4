#!/bin/sh
# One confined run from end to end: start a daemon in a throw-away home, run the verification goal sandboxed, show
# the receipt of its isolation, each judged call and the outcome, stop the daemon. Exits 0 only if the run completed.
set -eu

# `jq -e` fails where it has nothing to show: a run without a receipt, or without a judged call, proves nothing.
goal='Record a note whose text is exactly: transport-check . Use the record_note tool with only the text argument. Then stop.'

# The sockets' paths must stay under 108 bytes, so the home lies in a short place; another daemon's address in the
# environment must not be the one this script talks to.
unset SPL_URL SYNCROPEL_HOME TMPDIR
SPL_HOME=$(mktemp -d -t spl.XXXXXX)
export SPL_HOME
log=$SPL_HOME/demo.log
daemon=

finish() {
    code=$?
    trap - EXIT INT TERM HUP
    # Whoever read this may be gone; what is left to say then is said to nobody, and what is left to do is done.
    trap '' PIPE
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" || true
    fi
    if [ "$code" != 0 ] && [ -s "$log" ]; then
        { printf '\nThe demonstration failed; the daemon said:\n' && cat "$log"; } >&2 || true
    fi
    rm -rf "$SPL_HOME"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
# A reader that has gone, as 'head' does, must not leave the daemon behind.
trap 'exit 141' PIPE

title() { printf '\n== %s\n' "$*"; }

title 'A daemon in a throw-away home'
spl serve --port 0 >"$log" 2>&1 &
daemon=$!
deadline=$(($(date +%s) + 15))
until spl status -o json >/dev/null 2>&1; do
    if ! kill -0 "$daemon" 2>/dev/null; then
        echo 'demo: the daemon ended before it answered.' >&2
        exit 1
    fi
    if [ "$(date +%s)" -ge "$deadline" ]; then
        echo 'demo: the daemon did not answer within 15 seconds.' >&2
        exit 1
    fi
    sleep 0.1
done
cat "$log"
spl config set-transport sandboxed

title 'The run'
echo "goal: $goal"
code=0
row=$(spl run "$goal" --max-turns 3 --budget-usd 0.05 -o json) || code=$?
if [ "$code" != 0 ]; then
    [ -z "$row" ] || printf '%s\n' "$row"
    exit "$code"
fi
printf '%s\n' "$row" | jq -r '
    ["thread", "transport", "state", "turns", "tool_calls_ok", "tool_calls_failed", "spent_usd", "narrowed"] as $shown
    | . as $row | $shown[] | "\(.): \($row[.] | if type == "array" then join(", ") else tostring end)"'
thread=$(printf '%s\n' "$row" | jq -r .thread)
spl thread records "$thread" -o json >"$SPL_HOME/thread.json"

title 'Its isolation, each layer as it was observed before the credential was written'
jq -er '
    def column($width): tostring | . + (" " * ([$width - length, 1] | max));
    def brief: if type == "string" then . else tojson end;
    .data[].body | select(.kind == "core.work.isolation.v1")
    | (del(.kind, .layers) | to_entries[] | "\(.key | column(16)) \(.value | brief)"),
      (.layers[] | "", "\(.layer | column(16)) \(.claim)", (.observed[] | "    \(.how | column(44)) \(.observed)"))
    ' "$SPL_HOME/thread.json"

title 'Its calls, each judged by the kernel before it ran'
jq -er '
    .data[] | select(.body.kind | test("^core[.]work[.]tool_(call|verdict|result)[.]")) | .sequence as $sequence
    | .body | (.kind | split(".")[2] | sub("^tool_"; "")) as $step
    | if $step == "call" then [$sequence, $step, .tool, (.arguments | tojson)]
      elif $step == "verdict" then [$sequence, $step, .decision, "layer \(.layer)", .rule // empty, .reason // empty]
      else [$sequence, $step, .status, (.output | tojson)] end
    | map(tostring) | join("  ")' "$SPL_HOME/thread.json"

title 'Its outcome, written by the kernel, and the note'
jq '.data[].body | select(.kind == "core.work.loop_outcome.v1" or .kind == "core.work.note.v1")' "$SPL_HOME/thread.json"

title 'The daemon stops, and its home is removed'
spl stop
wait "$daemon"
daemon=
