#!/usr/bin/env bash
# Run one prompt in a session of `zot daemon` from a shell. A lost connection costs nothing. Needs bash, socat and jq.
#
#     ./client.sh SESSION "PROMPT" [--approve]
#
# $ZEROCLAW_SOCKET is the daemon's socket. --approve allows every tool call that asks; without it each is rejected.
# Exit codes: 0 completed, 1 failed or lost, 2 wrong usage, 3 no daemon, 130 cancelled with Ctrl+C.
set -u

if [ $# -lt 2 ]; then
  echo 'usage: client.sh SESSION "PROMPT" [--approve]' >&2
  exit 2
fi
session=$1 message=$2
decision=$([ "${3:-}" = --approve ] && echo allow_once || echo reject)
socket=${ZEROCLAW_SOCKET:-$HOME/.zeroclaw/data/daemon.sock}
our_id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') # by it we know our turn among those of others
cursor='' # the number of the last update that we have handled
known=''  # the epoch of the session: another one means that it is another session now
sent='' ours=''

fail() {
  echo "client.sh: $2" >&2
  exit "$1"
}

# call ID METHOD [jq options] PARAMS: jq writes the line, so that whatever is in a text becomes correct JSON.
call() {
  local id=$1 method=$2
  shift 2
  jq -cn --arg id "$id" --arg method "$method" --arg sessionId "$session" "${@:1:$#-1}" \
    "{jsonrpc: \"2.0\", \$id, \$method, params: ${*: -1}}" 2>/dev/null >&"$to"
}

# What we look at in a frame, as assignments for the shell, each frame followed by a NUL.
# shellcheck disable=SC2016
ASSIGNMENTS='
  (.params // .result // .error // {}) as $it
  | @sh "kind=\(if .method then $it.type // "" elif .error then "error" else "answer" end) id=\(.id // "")",
    @sh " seq=\($it.seq // "") last=\($it.lastSeq // "") epoch=\($it.epoch // "") state=\($it.state // "")",
    @sh " prompt=\($it | has("prompt")) prompt_id=\($it.promptId // "") outcome=\($it.outcome // "")",
    @sh " text=\($it.text // $it.argumentsSummary // $it.error // $it.message // "") code=\($it.code // "")",
    @sh " name=\($it.name // $it.requestId // "") input=\($it.rawInput | tojson) is_error=\($it.isError // false)",
    "\u0000"'

# Open or resume the session on one connection, send the prompt once, and handle what comes. Return when it is lost.
follow() {
  local settling='' ended=0 kind id seq last epoch state prompt prompt_id outcome text code name input is_error
  call hello initialize '{protocolVersion: 1, client: {name: "example-shell"}}'
  if [ -z "$known" ]; then
    call open session/new --arg cwd "$PWD" '{agentAlias: "default", $sessionId, $cwd}'
  else
    call open session/attach --argjson after "$cursor" '{$sessionId, $after}'
  fi
  # An idle session without a trace of our prompt may be silent for 2 s; then the prompt counts as lost.
  while IFS= read -r -d '' ${settling:+-t 2} -u "$from" line 2>/dev/null || { ended=$? && false; }; do
    eval "$line"
    case $kind:$id in
      answer:open) opened ;;
      error:prompt) refused ;;
      error:hello | error:open | error:) fail 1 "$text" ;;
      answer:* | error:*) ;; # of approve and cancel
      *) update ;;
    esac
  done
  [ "$ended" -le 128 ] || fail 1 "the daemon never got the prompt; send it again"
}

opened() {
  attempt=0
  if [ -z "$known" ]; then
    cursor=$last known=$epoch
  elif [ "$known" != "$epoch" ]; then
    fail 1 "the session is another one now: begin again"
  elif [ -n "$sent" ] && [ "$state" = idle ]; then
    settling=yes
  fi
  if [ -z "$sent" ]; then
    sent=yes
    call prompt session/prompt --arg prompt "$message" --arg promptId "$our_id" '{$sessionId, $prompt, $promptId}'
  fi
}

refused() {
  [ "$code" = -32005 ] || fail 1 "$text"
  sent='' # the daemon is stopping and has not begun this: ask the next one
  kill -- "-$connection"
}

update() {
  [ "$kind:$prompt" != state:true ] || ours=$prompt_id
  if [ "$ours" = "$our_id" ]; then
    case $kind in
      agent_message_chunk) printf %s "$text" ;;
      tool_call) echo && echo "[$name] $input" >&2 ;;
      tool_result) if "$is_error"; then echo "[failed]" >&2; else echo "[ok]" >&2; fi ;;
      approval_request)
        echo "[approve?] $text" >&2
        call approve session/approve --arg requestId "$name" --arg decision "$decision" \
          '{$sessionId, $requestId, $decision}'
        ;;
    esac
  fi
  [ -n "$seq" ] || return # it is not on record: the answer to the prompt counts
  cursor=$seq
  if [ "$kind:$prompt_id" = "turn_complete:$our_id" ]; then
    echo
    case $outcome in
      completed) exit 0 ;;
      cancelled) exit 130 ;;
      *) fail 1 "$text" ;;
    esac
  fi
}

socat -u /dev/null UNIX-CONNECT:"$socket" 2>/dev/null || fail 3 "there is no daemon at $socket"
# A second Ctrl+C ends this program; the turn continues in the daemon.
trap 'trap - INT; call cancel session/cancel "{\$sessionId}"' INT
trap '' PIPE # a lost connection shows when it is read
trap 'kill -- "-$connection" 2>/dev/null' EXIT
for ((attempt = 0; attempt < 100; attempt++)); do
  set -m # a process group of its own: a Ctrl+C at the terminal reaches this program alone
  coproc DAEMON { socat - UNIX-CONNECT:"$socket" 2>/dev/null | jq --unbuffered -j "$ASSIGNMENTS" 2>/dev/null; }
  set +m
  connection=$! from=${DAEMON[0]} to=${DAEMON[1]}
  follow
  wait "$connection" 2>/dev/null
  sleep 0.3
done
fail 3 "there is no daemon at $socket any more"
